// The README's examples of training and of a custom op are run as they stand, and its table of
// codes is checked.

import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
import { runReadmeExample } from '../../../tooling/test-kit/readme-example.ts';

const PACKAGE = fileURLToPath(new URL('..', import.meta.url));
const README = readFileSync(`${PACKAGE}README.md`, 'utf8');

test('the first example learns, and holds nothing but its parameters', async () => {
  const logged = await runReadmeExample(PACKAGE, { extension: 'mjs' });
  const losses = logged.slice(0, -1).map((line) => Number(/loss (.*)/.exec(line as string)![1]));
  expect(losses).toHaveLength(4);
  expect(losses[3]).toBeLessThan(losses[0]! / 10);
  expect(logged.at(-1)).toMatchObject({ parameter: 3 * 16 * 4, total: 3 * 16 * 4 });
});

test('the example of an op of your own runs, gradient and check', async () => {
  const [gradient] = await runReadmeExample(PACKAGE, { extension: 'mjs', index: 1 });
  const slope = (x: number) => {
    const s = 1 / (1 + Math.exp(-2 * x));
    return s * (1 + 2 * x * (1 - s));
  };
  expect(gradient).toEqual(Float32Array.from([-1, 0, 1], slope));
});

test('the table of errors lists every code', () => {
  const errors = readFileSync(`${PACKAGE}src/errors.ts`, 'utf8');
  const codes = [...errors.matchAll(/readonly code = '(\w+)'/g)].map(([, code]) => code);
  expect(codes).toHaveLength(10);
  for (const code of codes) {
    expect(README).toContain(`| \`${code}\` |`);
  }
});
