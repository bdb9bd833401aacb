// The gradient norm is the same for every strategy, so that clipping by it trains alike.

import { expect, it } from 'vitest';
import { runFlags } from './support/run-flags.js';

/** Returns the losses and norms of steps that are all clipped. */
async function stepsOf(flags: string): Promise<{ losses: number[]; norms: number[] }> {
  const common = '--model nano --seq 16 --batch 6 --steps 4 --clip 0.05 --device cpu --threads 1';
  const { steps } = await runFlags([...common.split(' '), ...flags.split(' ')]);
  const norms = steps.map(({ gradNorm }) => gradNorm!);
  expect(Math.min(...norms)).toBeGreaterThan(0.05);
  return { losses: steps.map(({ loss }) => loss), norms };
}

it('clipped steps of ddp and fsdp are equal bit for bit, and so are those of offload and one process', async () => {
  const [single, offload, again, ddp, fsdp, kept] = [
    await stepsOf('--ranks 1 --strategy single'),
    await stepsOf('--ranks 1 --strategy offload'),
    await stepsOf('--ranks 1 --strategy offload --slices 3 --checkpoint-activations'),
    await stepsOf('--ranks 3 --strategy ddp'),
    await stepsOf('--ranks 3 --strategy fsdp'),
    await stepsOf('--ranks 3 --strategy fsdp --no-reshard'),
  ];
  expect(fsdp).toEqual(ddp);
  expect(kept).toEqual(ddp);
  expect(offload).toEqual(single);
  expect(again).toEqual(single);
  for (const key of ['losses', 'norms'] as const) {
    ddp[key].forEach((value, step) => {
      const wanted = single[key][step]!;
      expect(Math.abs(value - wanted) / wanted, `${key} ${step}`).toBeLessThan(2e-6);
    });
  }
});
