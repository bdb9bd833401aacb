// Training by buckets equals training by one all-reduce for each parameter, bit for bit: losses,
// gradients and changing weights, over dtypes, batch norms, loss scales and options.

import type { DdpOptions } from '@shardweave/ddp-buckets';
import { naiveAllReduce } from '@shardweave/ddp-buckets/apex';
import {
  AdamW,
  BatchNorm1d,
  clipGradNorm,
  GradScaler,
  Module,
  Sgd,
  SyncBatchNorm,
} from '@shardweave/nn';
import {
  cast,
  type Device,
  type DType,
  linear,
  mean,
  square,
  sub,
  type Tensor,
  tanh,
} from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { onRanks, type Rank, wrap } from './support/ranks.js';

const [DIM, ROWS, STEPS] = [6, 4, 4];
type Norm = 'none' | 'batch' | 'sync';
type Scale = 1 | 128 | 'dynamic';

/** This module has two matrices of one dtype, optionally with a batch norm in f32 between them. */
class Net extends Module<[x: Tensor], Tensor> {
  readonly #weights: readonly Tensor[];
  readonly #norm: BatchNorm1d | undefined;

  constructor(device: Device, dtype: DType, norm: BatchNorm1d | undefined) {
    super(device);
    this.#weights = [0, 1].map((i) => {
      const values = Array.from({ length: DIM ** 2 }, (_, j) => Math.sin(1 + j + 36 * i) / 2);
      return this.parameter(String(i), device.tensor(values, [DIM, DIM], { dtype }));
    });
    this.#norm = norm && this.child('norm', norm);
  }

  async forward(x: Tensor): Promise<Tensor> {
    const [first, last] = this.#weights.map((weight) => cast(weight, 'f32'));
    const hidden = linear(x, { weight: first! });
    return linear(tanh((await this.#norm?.call(hidden)) ?? hidden), { weight: last! });
  }
}

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
    const bare = new Net(device, dtype, await normOf(rank, norm));
    const model = options === 'naive' ? bare : wrap(bare, rank, options);
    // In f16 the first gradients overflow under the dynamic scale.
    const initScale = scale === 'dynamic' ? 2 ** 22 : scale;
    const growthInterval = scale === 'dynamic' ? 2 : STEPS + 1;
    const scaler = new GradScaler(bare, { initScale, growthInterval, backoffFactor: 2 ** -8 });
    const optimizer =
      dtype === 'f16'
        ? new Sgd(bare.parameters(), { lr: 0.3, momentum: 0.5 })
        : new AdamW(bare.parameters(), { lr: 0.05 });
    const bits: Uint8Array[][] = [];
    let numSkipped = 0;
    const read = (tensors: readonly Tensor[]) => Promise.all(tensors.map((t) => t.toBytes()));
    const state = () => [...bare.parameters(), ...bare.namedBuffers().map(([, buffer]) => buffer)];
    bits.push(await read(state()));
    for (let step = 0; step < STEPS; step++) {
      await device.scope(async () => {
        const first = ROWS * (2 * step + rank.rank) * DIM;
        const values = Float32Array.from({ length: ROWS * DIM }, (_, i) =>
          Math.sin(7 * (first + i)),
        );
        const x = device.tensor(values, [ROWS, DIM]);
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
