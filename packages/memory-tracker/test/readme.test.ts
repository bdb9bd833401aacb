// The README's first example is run as it stands.

import { existsSync, readFileSync } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { expect, it, vi } from 'vitest';

const PACKAGE = fileURLToPath(new URL('..', import.meta.url));

it('the first example writes a summary, a suggestion and a chart', async () => {
  const example = /```js\n(.*?)```/s.exec(readFileSync(`${PACKAGE}README.md`, 'utf8'))![1]!;
  const folder = await mkdtemp(`${PACKAGE}test/.readme-`);
  const printed: unknown[] = [];
  const log = vi.spyOn(console, 'log').mockImplementation((value) => void printed.push(value));
  try {
    const chart = `${folder}/memory.svg`;
    await writeFile(`${folder}/example.js`, example.replace("'memory.svg'", JSON.stringify(chart)));
    await import(/* @vite-ignore */ `${folder}/example.js`);
    expect(existsSync(chart)).toBe(true);
  } finally {
    log.mockRestore();
    await rm(folder, { recursive: true });
  }
  expect(printed[0]).toContain('most live');
  expect(printed[0]).toContain('transformer.h.0.mlp.c_fc (Conv1D)');
  expect(printed[1]).toEqual([expect.stringContaining('transformer.h.')]);
});
