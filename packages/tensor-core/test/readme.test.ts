// The README's first example, run as it stands, and its table of codes.

import { readFileSync } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { expect, test, vi } from 'vitest';

const PACKAGE = fileURLToPath(new URL('..', import.meta.url));
const README = readFileSync(`${PACKAGE}README.md`, 'utf8');

test('the first example learns, and holds nothing but its parameters', async () => {
  const example = /```js\n(.*?)```/s.exec(README)![1]!;
  const folder = await mkdtemp(`${PACKAGE}test/.readme-`);
  const logged: unknown[] = [];
  const log = vi.spyOn(console, 'log').mockImplementation((value) => void logged.push(value));
  try {
    await writeFile(`${folder}/example.mjs`, example);
    await import(/* @vite-ignore */ `${folder}/example.mjs`);
  } finally {
    log.mockRestore();
    await rm(folder, { recursive: true });
  }
  const losses = logged.slice(0, -1).map((line) => Number(/loss (.*)/.exec(line as string)![1]));
  expect(losses).toHaveLength(4);
  expect(losses[3]).toBeLessThan(losses[0]! / 10);
  expect(logged.at(-1)).toMatchObject({ parameter: 3 * 16 * 4, total: 3 * 16 * 4 });
});

test('the table of errors lists every code', () => {
  const errors = readFileSync(`${PACKAGE}src/errors.ts`, 'utf8');
  const codes = [...errors.matchAll(/readonly code = '(\w+)'/g)].map(([, code]) => code);
  expect(codes).toHaveLength(9);
  for (const code of codes) expect(README).toContain(`| \`${code}\` |`);
});
