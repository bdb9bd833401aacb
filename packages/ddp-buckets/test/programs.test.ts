// Programs as people write them run on several ranks and on one process with all their rows. What a
// rank computes with, when it reduces and what is trained changes from step to step.

import type { DdpOptions, DistributedDataParallel } from '@shardweave/ddp-buckets';
import { clipGradNorm, GradScaler, Linear, Module, ModuleList, Sgd } from '@shardweave/nn';
import {
  add,
  type Backend,
  type Device,
  gelu,
  mean,
  mul,
  square,
  type Tensor,
} from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { onBags, onRanks, pull, pulled, weightsOf, wrap } from './support/ranks.js';

const [DIM, ROWS] = [6, 4];

/** This module runs a stem, then the chosen layers, each with a residual connection. */
class Net extends Module<[x: Tensor, used: readonly number[]], Tensor> {
  readonly stem: Linear;
  readonly layers: ModuleList;

  constructor(device: Device) {
    super(device);
    const make = (i: number) => {
      const layer = new Linear(device, { inFeatures: DIM, outFeatures: DIM });
      const values = Float32Array.from({ length: DIM ** 2 }, (_, j) => Math.sin(j + 50 * i) / 3);
      device.scope(() =>
        device.noGrad(() => device.copyInto(layer.weight, device.tensor(values, [DIM, DIM]))),
      );
      return layer;
    };
    this.stem = this.child('stem', make(0));
    this.layers = this.child('layers', new ModuleList(device, [make(1), make(2), make(3)]));
  }

  async forward(x: Tensor, used: readonly number[]): Promise<Tensor> {
    let hidden = await this.stem.call(x);
    for (const i of used) {
      hidden = add(hidden, gelu(await this.layers.at(i)!.call(hidden)));
    }
    return hidden;
  }
}

interface Program {
  readonly steps: number;
  readonly worldSize: number;
  /** The layers that a rank uses in a step. */
  readonly used: (rank: number, step: number) => readonly number[];
  /** Sets what is trained in a step. */
  readonly prepare?: (net: Net, step: number) => void;
  readonly microBatches?: number;
  readonly clip?: number;
  readonly lossScale?: number;
}

/** Returns the loss of one rank in one micro-batch of a step. */
async function lossOf(
  model: Module,
  program: Program,
  { rank, step, micro }: { readonly rank: number; readonly step: number; readonly micro: number },
): Promise<Tensor> {
  const { device } = model;
  const seed = 31 * (step * 7 + micro) + rank;
  const values = Float32Array.from({ length: ROWS * DIM }, (_, i) => Math.sin(1.7 * i + seed));
  const x = device.tensor(values, [ROWS, DIM]);
  return mean(square(await model.call(x, program.used(rank, step))));
}

async function stepped(
  net: Net,
  program: Program,
  reduce: (step: number, scaler: GradScaler) => Promise<void>,
): Promise<Map<string, Float32Array>> {
  const optimizer = new Sgd(net.parameters(), { lr: 0.1, momentum: 0.5 });
  const scaler = new GradScaler(net, { initScale: program.lossScale ?? 1 });
  for (let step = 0; step < program.steps; step++) {
    program.prepare?.(net, step);
    await net.device.scope(async () => {
      await reduce(step, scaler);
      const { scale } = await clipGradNorm(net, program.clip ?? Number.POSITIVE_INFINITY, {
        unscale: 1 / scaler.factor,
      });
      await optimizer.step({ gradScale: scale });
    });
    net.zeroGrad();
  }
  return weightsOf(net);
}

let backend: Backend;
beforeAll(async () => {
  backend = await createCpuBackend({ threads: 1 });
});
afterAll(() => backend.dispose());

/** Trains on one process with the mean of all ranks' losses, and returns the weights. */
async function alone(program: Program): Promise<Map<string, Float32Array>> {
  const { worldSize, microBatches = 1 } = program;
  const body = ({ device }: { readonly device: Device }) => {
    const net = new Net(device);
    return stepped(net, program, async (step, scaler) => {
      for (let rank = 0; rank < worldSize; rank++) {
        for (let micro = 0; micro < microBatches; micro++) {
          const loss = await lossOf(net, program, { rank, step, micro });
          await scaler.scale(mul(loss, device.full([1], 1 / worldSize))).backward();
        }
      }
    });
  };
  return (await onRanks(1, body, { backend }))[0]!;
}

type Reduction = 'each' | 'noSync' | 'disableAllreduce';

/** Trains the same on several ranks, which all end with the same weights, and returns these. */
async function together(
  program: Program,
  options: Partial<DdpOptions>,
  reduction: Reduction = 'each',
): Promise<Map<string, Float32Array>> {
  const { worldSize, microBatches = 1 } = program;
  const perRank = await onRanks(
    worldSize,
    async (rank) => {
      const net = new Net(rank.device);
      const model = wrap(net, rank, { messageSize: 40, ...options });
      return stepped(net, program, async (step, scaler) => {
        for (let micro = 0; micro < microBatches; micro++) {
          const run = async () => {
            const loss = await lossOf(model, program, { rank: rank.rank, step, micro });
            await scaler.scale(loss).backward();
          };
          await reduced(model, { reduction, isLast: micro === microBatches - 1 }, run);
        }
      });
    },
    { backend },
  );
  for (const weights of perRank) {
    expect(weights).toEqual(perRank[0]);
  }
  return perRank[0]!;
}

async function reduced(
  model: DistributedDataParallel,
  { reduction, isLast }: { readonly reduction: Reduction; readonly isLast: boolean },
  run: () => Promise<void>,
): Promise<void> {
  if (reduction === 'each' || isLast) {
    if (reduction === 'disableAllreduce') {
      model.enableAllreduce();
    }
    return run();
  }
  if (reduction === 'noSync') {
    return model.noSync(run);
  }
  model.disableAllreduce();
  return run();
}

/** Expects equality to 1e-6, on the f32 kernels with which people train. */
async function expectAlone(actual: Map<string, Float32Array>, program: Program): Promise<void> {
  const expected = await alone(program);
  for (const [name, values] of actual) {
    const worst = Math.max(...values.map((x, i) => Math.abs(x - expected.get(name)![i]!)));
    expect(worst, name).toBeLessThan(1e-6);
  }
}

const ALL = () => [0, 1, 2];

it('experts that differ by rank and by step', async () => {
  const used = (rank: number, step: number) =>
    [(rank * 2 + step) % 3].filter((i) => i + step !== 4);
  const program = { steps: 9, worldSize: 3, used };
  await expectAlone(await together(program, { findUnusedParameters: true }), program);
});

it('a graph and a trained set that change alike on all ranks', async () => {
  const program: Program = {
    steps: 14,
    worldSize: 2,
    used: (_, step) => [[0, 1, 2], [2, 0], [1], [0, 1, 2, 0]][step % 4]!,
    prepare: (net, step) => {
      for (const [i, layer] of [...net.layers].entries()) {
        for (const parameter of layer.parameters()) {
          parameter.requiresGrad = (step >> i) % 2 === 0;
        }
      }
      net.stem.bias!.requiresGrad = step % 5 !== 3;
    },
  };
  await expectAlone(await together(program, { findUnusedParameters: true }), program);
});

describe('micro-batches', () => {
  const sets: Partial<DdpOptions>[] = [
    {},
    { delayAllreduce: true },
    { retainAllreduceBuffers: true },
    { numAllreduceStreams: 2 },
    { staticGraph: true },
    { findUnusedParameters: true },
    { gradientPredivideFactor: 2 },
  ];

  it.each(sets)(
    'training with %o equals one process, reduced each or at the last, clipped and scaled',
    async (options) => {
      for (const [index, reduction] of (
        ['each', 'noSync', 'disableAllreduce'] as const
      ).entries()) {
        const program = {
          steps: 3,
          worldSize: 2,
          used: ALL,
          microBatches: 3,
          ...(index > 0 ? { clip: 0.5 } : {}),
          ...(index < 2 ? { lossScale: 1024 } : {}),
        };
        await expectAlone(await together(program, options, reduction), program);
      }
    },
  );
});

describe('a model that is cast after wrapping', () => {
  it.each([{}, { retainAllreduceBuffers: true }])(
    'has gradients of its new dtype, %o',
    async (options) => {
      await onBags(2, { a: 3, b: 200 }, options, async ({ rank, bag, model }) => {
        for (const dtype of ['f32', 'f16', 'bf16', 'f32'] as const) {
          model.zeroGrad();
          model.to(dtype);
          await pull(model, 1 + rank.rank);
          expect(await pulled(model)).toEqual({ a: 1.5, b: 3 });
          for (const { grad } of bag.parameters()) {
            expect(grad!.dtype).toBe(dtype);
          }
        }
        model.zeroGrad();
        expect(rank.device.memory().live.gradient).toBe(0);
      });
    },
  );

  it('a cast on one rank alone is an error on all of them', async () => {
    const errors = await onBags(2, { a: 4 }, {}, async ({ rank, model }) => {
      await pull(model, 1);
      model.zeroGrad();
      if (rank.rank === 1) {
        model.to('f16');
      }
      return pull(model, 1).catch((error: unknown) => error as Error);
    });
    for (const error of errors) {
      expect((error as { code?: string }).code).toMatch(/DDP_STRUCTURE|MISMATCH/);
    }
  });
});
