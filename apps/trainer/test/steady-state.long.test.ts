// A thousand steps with adapters keep memory flat: live bytes, peak, pool and buffers are checked
// after each step.

import { it } from 'vitest';
import { expectSteady } from './support/expect-steady.js';

it.each([
  '--strategy single --lora-rank 4 --lora-dropout 0.1',
  '--ranks 2 --precision bf16 --lora-rank 4',
  '--strategy offload --lora-rank 4',
])('a thousand steps of %s', { timeout: 600_000 }, (flags) =>
  expectSteady(1000, `--device cpu ${flags}`),
);
