// Twenty steps with adapters are compared with PyTorch's (tooling/reference/lora.py). The command
// reads the base and a PEFT directory whose second factors are zero. It has the same losses and
// norms in every strategy.

import { describe, expect, it } from 'vitest';
import { expectReference, losses } from './support/expect-reference.js';
import { referenceCase, runFlags, worstRatio } from './support/run-flags.js';

/** Sharded and single runs differ only by the order of sums. */
const SHARDED_TOLERANCE = 2e-6;

const isLong = process.env.SHARDWEAVE_LONG === '1';
const LONG_HALVES: [name: string, flags: string][] = [
  ['lora.llama-bf16', '--strategy single'],
  ['lora.qwen3-bf16', '--strategy single'],
];
const run = (name: string, flags: string) =>
  runFlags([...referenceCase(name).flags, '--device', 'cpu', ...flags.split(' ')]);

describe('adapters have the losses of PyTorch', () => {
  it.each([
    'lora.llama-fp32',
    ...(isLong ? ['lora.qwen3-fp32', 'lora.qwen2-fp32', 'lora.gemma3-fp32'] : []),
  ])('%s alone, and sharded as alone', async (name) => {
    const single = await run(name, '--strategy single');
    expectReference(single, name);
    const sharded = await run(name, '--ranks 3 --checkpoint-activations');
    expectReference(sharded, name);
    expect(worstRatio(losses(sharded), losses(single))).toBeLessThan(SHARDED_TOLERANCE);
  });

  it.each([
    ['lora.llama-fp32', '--strategy offload --slices 3'],
    ['lora.qwen3-fp32', '--strategy ddp --ranks 2'],
  ])('%s %s', async (name, flags) => {
    expectReference(await run(name, flags), name);
  });

  // The frozen base is rounded once. Adapters are f32 and are rounded for each product.
  it.each<[name: string, flags: string]>([
    ['lora.llama-bf16', '--ranks 2'],
    ['lora.qwen3-bf16', '--strategy offload --slices 2'],
    ...(isLong ? LONG_HALVES : []),
  ])('%s %s', async (name, flags) => {
    expectReference(await run(name, flags), name);
  });
});
