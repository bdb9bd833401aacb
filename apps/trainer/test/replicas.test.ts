// With ddp all ranks have whole models, which stay equal: in 16 bits, where one rank overflows, and
// on devices that round differently.

import { stateDict } from '@shardweave/nn';
import type { Backend } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import type { Dataset } from '../src/data/dataset.js';
import type { Strategy } from '../src/rank/strategies/strategy.js';
import { tinyFlags } from './support/tiny-run.js';
import { trainOn } from './support/train-on.js';

const root = newFolder();
const tiny = tinyFlags(root);

/** Returns this rank's copy of all parameters, as text. */
async function weightsOf({ module }: Strategy): Promise<string> {
  const state = await stateDict(module);
  const all = [...state.values()].map(({ data }) => Buffer.from(data as Uint8Array));
  return Buffer.concat(all).toString('base64');
}

/**
 * Trains with two ranks of ddp. Returns the outcome of each step and the final weights, by rank.
 */
async function trained(
  flags: string,
  options: {
    readonly backendOf?: (rank: number) => Backend | undefined;
    readonly prepare?: (text: Dataset) => Dataset;
  } = {},
) {
  const weights: string[] = [];
  const { outcomes } = await trainOn(
    `${tiny} --strategy ddp --ranks 2 ${flags}`,
    options.prepare ?? ((text) => text),
    {
      ...options,
      onTrained: async (strategy, rank) => {
        weights[rank] = await weightsOf(strategy);
      },
    },
  );
  return { outcomes, weights };
}

describe('ranks on two devices that round differently', () => {
  const mixed = (flags: string) =>
    trained(flags, { backendOf: (rank) => (rank === 1 ? createReferenceBackend() : undefined) });

  it.each([
    '--precision fp32',
    '--precision bf16',
    '--precision fp16 --lora-rank 2 --grad-accum 2',
  ])('%s', async (flags) => {
    const line = `${flags} --steps 4 --lr 0.01 --clip 0.05`;
    const { outcomes, weights } = await mixed(line);
    expect(weights[1]).toBe(weights[0]);
    expect(outcomes[1]).toEqual(outcomes[0]);
    const alike = await trained(line);
    const losses = outcomes[0]!.map(({ loss }) => loss);
    const expected = alike.outcomes[0]!.map(({ loss }) => loss);
    const tolerance = flags.includes('fp32') ? 2e-4 : 5e-3;
    for (const [i, loss] of losses.entries()) {
      expect(Math.abs(loss / expected[i]! - 1)).toBeLessThan(tolerance);
    }
  });
});

describe('in f16', () => {
  /**
   * In one step the losses of one rank count so much that its gradients overflow. Those of the
   * other rank do not.
   */
  const overflowing = (text: Dataset): Dataset => ({
    ...text,
    microBatch: async (step, rank, microStep) => {
      const batch = await text.microBatch(step, rank, microStep);
      const weight = step === 1 && rank === 1 ? 1e9 : 1;
      return { ...batch, weights: new Float32Array(batch.tokens.length).fill(weight) };
    },
  });

  it.each(['', '--fp32-reduce'])('an overflow on one rank is skipped on all %s', async (flag) => {
    const flags = `--precision fp16 --steps 4 --lr 0.01 ${flag}`.trim();
    const { outcomes, weights } = await trained(flags, { prepare: overflowing });
    expect(weights[1]).toBe(weights[0]);
    for (const own of outcomes) {
      expect(own.map(({ isSkipped }) => isSkipped)).toEqual([false, true, false, false]);
      expect(own[2]!.lossScale).toBe(own[1]!.lossScale / 2);
    }
    const { weights: unbroken } = await trained(flags);
    expect(unbroken[0]).not.toBe(weights[0]);
  });
});
