// Data-parallel training is compared with one process, with sharded training and with its own
// specification, on the same global batches.

import type { ProcessGroup } from '@shardweave/collectives';
import type { DdpOptions } from '@shardweave/ddp-buckets';
import { naiveAllReduce } from '@shardweave/ddp-buckets/apex';
import type { FsdpOptions } from '@shardweave/fsdp';
import { clipGradNorm, type Module, scaleGradients } from '@shardweave/nn';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { beforeAll, describe, expect, it } from 'vitest';
import {
  expectAsAlone,
  expectClose,
  expectEqualBits,
  meanLosses,
  type Trained,
  trainAlone,
  trainAs,
  training,
  type Wrap,
} from '../../../tooling/test-kit/index.ts';
import {
  forwardBackward,
  makeOptimizer,
  type Rank,
  SMALL_BUCKETS,
  shardedBlocks,
  tinyGpt2,
  wrap,
} from './support/ranks.js';

const BATCH = 12; // Every number of ranks below divides it.

/** A bound below the norm of every step, so that all steps are clipped. */
const MAX_NORM = 0.05;

/** The groups of bare models, whose gradients take an all-reduce for each parameter. */
const NAIVE = new WeakMap<Module, ProcessGroup>();

type Wrapping = (rank: Rank) => Wrap;

const naive: Wrapping =
  ({ group }) =>
  (module) => {
    NAIVE.set(module, group);
    return module;
  };

const ddp =
  (options: Partial<DdpOptions> = SMALL_BUCKETS): Wrapping =>
  (rank) =>
  (module) =>
    wrap(module, rank, options);

const fsdp =
  (options: Partial<FsdpOptions>): Wrapping =>
  ({ group }) =>
  (module) =>
    shardedBlocks(module, { processGroup: group, ...options });

/** Trains a GPT-2 for twenty steps. The norms of steps that are clipped stand for their losses. */
function gpt2(kind: 'adamw' | 'sgd', { isClipped = false } = {}) {
  return training<object>({
    build: (device, wrapIn) => wrapIn(tinyGpt2(device)),
    optimizer: (model) => makeOptimizer(model, kind),
    steps: 20,
    run: async (model, rows, step) => {
      const { device } = model;
      const loss = await forwardBackward(device, model, step, { batch: BATCH, ...rows });
      const group = NAIVE.get(model);
      if (group !== undefined) {
        await naiveAllReduce(model.parameters(), { processGroup: group });
      }
      if (!isClipped) {
        return loss;
      }
      return device.scope(async () => {
        const { norm, scale } = await clipGradNorm(model, MAX_NORM);
        await scaleGradients(model, scale);
        return norm.item();
      });
    },
  });
}

const isLong = process.env.SHARDWEAVE_LONG === '1';

describe.each(isLong ? [1, 3] : [3])('%i ranks, 20 AdamW steps in f32', (ranks) => {
  const trainedBy = (wrapping: Wrapping) => trainAs(gpt2('adamw'), { ranks, wrap: wrapping });
  let replicated: readonly Trained[];
  beforeAll(async () => {
    replicated = await trainedBy(ddp());
    for (const { weights } of replicated) {
      expectEqualBits([{ losses: [], weights }], [{ ...replicated[0]!, losses: [] }]);
    }
  });

  it('equal one process in their losses, to 2e-6', async () => {
    const alone = await trainAlone(gpt2('adamw'));
    expectClose(meanLosses(replicated), alone.losses, 2e-6, 'loss of step ');
    expect(alone.losses.at(-1)).toBeLessThan(alone.losses[0]! - 0.05); // The model did learn.
  });

  it('equal fsdp, resharding or not, bit for bit', async () => {
    expectEqualBits(await trainedBy(fsdp({ reshardAfterForward: true })), replicated);
    expectEqualBits(await trainedBy(fsdp({ reshardAfterForward: false })), replicated);
  });

  it('equal fsdp where gradients are clipped, norms and all', async () => {
    const program = gpt2('adamw', { isClipped: true });
    const clipped = await trainAs(program, { ranks, wrap: ddp() });
    expect(Math.min(...clipped[0]!.losses)).toBeGreaterThan(MAX_NORM);
    expectEqualBits(await trainAs(program, { ranks, wrap: fsdp({}) }), clipped);
  });

  it('equal the naive version, an all-reduce for each parameter, bit for bit', async () => {
    const plain = await trainedBy(naive);
    expectEqualBits(replicated, plain);
    const retained = { ...SMALL_BUCKETS, retainAllreduceBuffers: true };
    expectEqualBits(await trainedBy(ddp(retained)), plain);
    expectEqualBits(await trainedBy(ddp({ delayAllreduce: true })), plain);
  });
});

it.runIf(isLong)(
  '4 ranks equal one process in the weights after 20 SGD steps, to 1e-6',
  async () => {
    // The reference sums in f64, so that a remaining difference from one process comes from this
    // package: this model amplifies f32's rounding of sums a hundredfold.
    const backend = createReferenceBackend();
    const alone = await trainAlone(gpt2('sgd'), { backend });
    expectAsAlone(await trainAs(gpt2('sgd'), { ranks: 4, wrap: ddp(), backend }), alone, 1e-6);
  },
);
