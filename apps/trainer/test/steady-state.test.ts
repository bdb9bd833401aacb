// Many steps of ranks in one process keep memory flat, and dispose leaves none.
// steady-state.long.test.ts takes a thousand steps.

import { describe, it } from 'vitest';
import { expectSteady } from './support/expect-steady.js';
import { whyNoWebGpu } from './support/webgpu-adapter.js';

/**
 * The number of steps. What grows with steps has grown by then, for nothing may grow at all behind
 * the second. A software driver needs a tenth of a second for each.
 */
const STEPS = { cpu: 30, webgpu: process.env.SHARDWEAVE_LONG === '1' ? 12 : 6 };
const RANKS = 2;

const reason = await whyNoWebGpu();
const CASES = [
  ['cpu', `--device cpu --ranks ${RANKS} --precision bf16 --checkpoint-activations`],
  ['cpu', `--device cpu --ranks ${RANKS} --grad-accum 2 --no-sync --no-reshard --dropout 0.1`],
  ['cpu', `--device cpu --ranks ${RANKS} --precision bf16 --lora-rank 4 --lora-dropout 0.1`],
  ['webgpu', `--device webgpu --ranks ${RANKS}`],
] as const;

describe('many steps', () => {
  for (const [device, flags] of CASES) {
    const skipped = device === 'webgpu' ? reason : undefined;
    const title = skipped === undefined ? flags : `${flags} (${skipped})`;
    it.skipIf(skipped !== undefined)(title, { timeout: 240_000 }, () =>
      expectSteady(STEPS[device], flags),
    );
  }
});
