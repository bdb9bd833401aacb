// Training by buckets equals training by one all-reduce for each parameter, bit for bit: losses,
// gradients and changing weights, over dtypes, batch norms, loss scales and options.

import type { DdpOptions } from '@shardweave/ddp-buckets';
import { naiveAllReduce } from '@shardweave/ddp-buckets/apex';
import { AdamW, BatchNorm1d, clipGradNorm, GradScaler, Sgd, SyncBatchNorm } from '@shardweave/nn';
import { type DType, mean, square, sub, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { DIM, inputs } from '../../../tooling/test-kit/index.ts';
import { CastNet } from './support/cast-net.js';
import { onRanks, type Rank, wrap } from './support/ranks.js';

const [ROWS, STEPS] = [4, 4];
type Norm = 'none' | 'batch' | 'sync';
type Scale = 1 | 128 | 'dynamic';

interface Training {
  readonly dtype: DType;
  readonly norm: Norm;
  readonly scale: Scale;
}

async function normOf({ device, group }: Rank, norm: Norm): Promise<BatchNorm1d | undefined> {
  if (norm === 'none') {
    return undefined;
  }
  if (norm === 'batch') {
    return new BatchNorm1d(device, { numFeatures: DIM });
  }
  return new SyncBatchNorm(device, { numFeatures: DIM, group: await group.split(0) });
}

/** Returns the bits of each step's loss and gradients, and of the weights and buffers after it. */
function trained({ dtype, norm, scale }: Training, options: Partial<DdpOptions> | 'naive') {
  return onRanks(2, async (rank) => {
    const { device, group } = rank;
    const bare = new CastNet(device, dtype, { norm: await normOf(rank, norm) });
    const model = options === 'naive' ? bare : wrap(bare, rank, options);
    // In f16 the first gradients overflow under the dynamic scale.
    const initScale = scale === 'dynamic' ? 2 ** 22 : scale;
    const growthInterval = scale === 'dynamic' ? 2 : STEPS + 1;
    const scaler = new GradScaler(bare, { initScale, growthInterval, backoffFactor: 2 ** -8 });
    const optimizer =
      dtype === 'f16'
        ? new Sgd(bare.parameters(), { lr: 0.3, momentum: 0.5 })
        : new AdamW(bare.parameters(), { lr: 0.05 });
    const bits: string[][] = [];
    let numSkipped = 0;
    const read = (tensors: readonly Tensor[]) =>
      Promise.all(tensors.map(async (t) => Buffer.from(await t.toBytes()).toString('hex')));
    const state = () => [...bare.parameters(), ...bare.namedBuffers().map(([, buffer]) => buffer)];
    bits.push(await read(state()));
    for (let step = 0; step < STEPS; step++) {
      await device.scope(async () => {
        const x = inputs(device, { first: ROWS * (2 * step + rank.rank), count: ROWS });
        const loss = mean(square(sub(await model.call(x), device.full([ROWS, DIM], 0.3))));
        await scaler.scale(loss).backward();
        bits.push(await read([loss]));
        if (options === 'naive') {
          const naive = { processGroup: group, gradientPredivideFactor: 2 };
          await naiveAllReduce(bare.parameters(), naive);
        }
        bits.push(await read(bare.parameters().map(({ grad }) => grad!)));
        const clipped = await clipGradNorm(bare, 1, { unscale: 1 / scaler.factor });
        const isSkipped = !Number.isFinite(await clipped.norm.item());
        if (isSkipped) {
          numSkipped += 1;
        } else {
          await optimizer.step({ gradScale: clipped.scale });
        }
        scaler.update(isSkipped);
      });
      bits.push(await read(state()));
      bare.zeroGrad();
    }
    return { bits, numSkipped };
  });
}

const VARIANTS: readonly Partial<DdpOptions>[] = [
  {},
  { messageSize: 1 },
  { delayAllreduce: true },
  { retainAllreduceBuffers: true },
  { numAllreduceStreams: 3, messageSize: 1 },
  { staticGraph: true },
  { findUnusedParameters: true },
];

describe('losses, gradients and weights are those of the naive version', () => {
  const norms: readonly [Norm, Scale][] = [
    ['none', 1],
    ['none', 'dynamic'],
    ['batch', 128],
    ['batch', 'dynamic'],
    ['sync', 1],
    ['sync', 'dynamic'],
  ];
  const cases = (['f32', 'f16', 'bf16'] as const).flatMap((dtype) =>
    norms.map(([norm, scale]) => ({ dtype, norm, scale })),
  );

  it.each(cases)('$dtype, norm $norm, loss scale $scale', async (training) => {
    const naive = await trained(training, 'naive');
    for (const [index, options] of VARIANTS.entries()) {
      // Each case runs with a third of the options, and three neighboring cases cover all.
      if ((index + cases.indexOf(training)) % 3 !== 0) {
        continue;
      }
      const bucketed = await trained(training, { gradientPredivideFactor: 2, ...options });
      expect(bucketed, JSON.stringify(options)).toEqual(naive);
    }
    for (const { bits, numSkipped } of naive) {
      const [before, after] = [bits[0]!, bits.at(-1)!];
      for (const [i, weight] of before.entries()) {
        expect(after[i]).not.toEqual(weight);
      }
      expect(numSkipped).toBe(training.dtype === 'f16' && training.scale === 'dynamic' ? 1 : 0);
    }
  });
});
