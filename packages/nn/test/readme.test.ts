// Runs the first example of the README as it is printed there.

import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { runReadmeExample } from '../../../tooling/test-kit/readme-example.ts';

const PACKAGE = fileURLToPath(new URL('..', import.meta.url));

it('the first example trains', async () => {
  const change = (example: string) => example.replace('(shift)', '(shift: number)');
  const lines = (await runReadmeExample(PACKAGE, { extension: 'ts', change })) as string[];
  expect(lines).toHaveLength(3);
  const losses = lines.map((line) => Number(/loss (.*)/.exec(line)![1]));
  expect(losses[0]).toBeLessThan(5);
  expect(losses[2]).toBeLessThan(losses[0]! - 0.5);
});
