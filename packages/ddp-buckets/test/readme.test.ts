// The README's first example is run as it stands.

import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { runReadmeExample } from '../../../tooling/test-kit/readme-example.ts';

const PACKAGE = fileURLToPath(new URL('..', import.meta.url));

it('the first example trains', async () => {
  const lines = (await runReadmeExample(PACKAGE)) as string[];
  expect(lines).toHaveLength(5);
  const losses = lines.map((line) => Number(/loss (.*)/.exec(line)![1]));
  expect(losses[0]).toBeLessThan(6);
  expect(losses[4]).toBeLessThan(losses[0]! - 0.2);
});
