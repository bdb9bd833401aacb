// The README's first example is run as it stands.

import { readFileSync } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { expect, it, vi } from 'vitest';

const PACKAGE = fileURLToPath(new URL('..', import.meta.url));

it('the first example trains', async () => {
  const example = /```js\n(.*?)```/s.exec(readFileSync(`${PACKAGE}README.md`, 'utf8'))![1]!;
  const folder = await mkdtemp(`${PACKAGE}test/.readme-`);
  const lines: string[] = [];
  const log = vi.spyOn(console, 'log').mockImplementation((line) => void lines.push(line));
  try {
    await writeFile(`${folder}/example.js`, example);
    await import(/* @vite-ignore */ `${folder}/example.js`);
  } finally {
    log.mockRestore();
    await rm(folder, { recursive: true });
  }
  const losses = lines.slice(0, 3).map((line) => Number(/loss (.*)/.exec(line)![1]));
  expect(losses[0]).toBeLessThan(6);
  expect(losses[2]).toBeLessThan(losses[0]!);
  const [slices, reserved] = /(\d+) slices, (\d+) bytes/.exec(lines[3]!)!.slice(1).map(Number);
  expect(slices).toBeGreaterThan(1);
  expect(reserved).toBeLessThanOrEqual(1.5e6);
});
