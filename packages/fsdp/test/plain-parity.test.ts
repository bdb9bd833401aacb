// After two SGD steps with momentum, clipping and a loss scale, the whole state dict equals that of
// an unsharded run. The models are nested, wrapped everywhere, checkpointed, and a transformer with
// tied weights, each with and without resharding, mixed precision and flattening. In 16 bits the
// reference keeps f32 masters beside a 16-bit model by hand.

import { FullyShardedDataParallel } from '@shardweave/fsdp';
import { localMetadataDict } from '@shardweave/fsdp/fairscale';
import {
  checkpoint,
  clipGradNorm,
  Gpt2,
  GradScaler,
  Linear,
  type Module,
  Sgd,
  stateDict,
} from '@shardweave/nn';
import { cast, crossEntropy, type Device, isFloat, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { onRanks, type Rank, TINY, tokens } from './support/ranks.js';
import { DIM, inputs, lossOf, Stack } from './support/scenarios.js';

const SCALE = 1024;
const CLIP = 0.3;
const STEPS = 2;
const HYPER = { lr: 0.1, momentum: 0.9 };
/**
 * The limit for f32 is rounding. For f16 it is 2^-11 of steps of 0.03, from gradients over few rows
 * on each rank.
 */
const TOLERANCE = { f32: 1e-6, f16: 2e-4 };

type Wrap = (module: Module) => Module;

interface Kind {
  readonly batch: number;
  build(device: Device, wrap: Wrap): Module;
  /** Returns the loss of rows [first, first + count), with inputs cast to `dtype`. */
  loss(model: Module, rows: { first: number; count: number }, step: number): Promise<Tensor>;
}

function linear(device: Device, inFeatures: number, outFeatures: number): Linear {
  return new Linear(device, { inFeatures, outFeatures });
}

async function stackLoss(
  model: Module,
  rows: { first: number; count: number },
  step: number,
): Promise<Tensor> {
  const [weight] = model.parameters();
  const x = inputs(model.device, rows, step);
  const isPlain16 = weight!.piece === undefined && weight!.dtype !== 'f32';
  return lossOf((await model.call(isPlain16 ? cast(x, weight!.dtype) : x)) as Tensor);
}

const KINDS: Record<string, Kind> = {
  nested: {
    batch: 6,
    build: (device, wrap) => {
      const inner = new Stack(device, [linear(device, 31, 17), wrap(linear(device, 17, 23))]);
      return wrap(new Stack(device, [linear(device, DIM, 31), wrap(inner), linear(device, 23, 9)]));
    },
    loss: stackLoss,
  },
  'all wrapped': {
    batch: 6,
    build: (device, wrap) =>
      wrap(new Stack(device, [wrap(linear(device, DIM, 31)), wrap(linear(device, 31, 17))])),
    loss: stackLoss,
  },
  'all wrapped, checkpointed': {
    batch: 6,
    build: (device, wrap) =>
      wrap(
        new Stack(device, [
          wrap(checkpoint(linear(device, DIM, 31))),
          wrap(checkpoint(linear(device, 31, 17))),
        ]),
      ),
    loss: stackLoss,
  },
  'transformer with tied weights': {
    batch: 2,
    build: (device, wrap) => {
      const gpt2 = new Gpt2(device, { ...TINY, n_layer: 1 }, { seed: 3 });
      const [, name] = [...gpt2.children().keys()];
      gpt2.replaceChild(name!, wrap(gpt2.children().get(name!)!));
      return wrap(gpt2);
    },
    loss: async (model, { first, count }, step) => {
      const all = tokens(step, 2, 8, 37);
      const part = (values: Int32Array) => values.slice(first * 8, (first + count) * 8);
      const ids = model.device.tensor(part(all.ids), [count, 8]);
      const targets = model.device.tensor(part(all.targets), [count, 8]);
      return crossEntropy((await model.call(ids)) as Tensor, targets);
    },
  },
};

type Weights = Map<string, Float32Array>;

async function plainRun(
  kind: Kind,
  dtype: 'f32' | 'f16',
): Promise<{ start: Weights; end: Weights }> {
  const [result] = await onRanks(1, async ({ device }) => {
    const model = kind.build(device, (module) => module);
    const named = model.namedParameters();
    const masters: Tensor[] = [];
    for (const [, { shape, ...parameter }] of named) {
      expect(parameter.requiresGrad).toBe(true);
      masters.push(device.zeros(shape, { tag: 'parameter', requiresGrad: true }).keep());
    }
    named.forEach(([, parameter], i) => {
      device.copyInto(masters[i]!, parameter);
    });
    const start = await weightsOf(named, masters);
    const working = model.to(dtype);
    const optimizer = new Sgd(masters, HYPER);
    for (let step = 0; step < STEPS; step++) {
      const parameters = working.parameters();
      parameters.forEach((parameter, i) => {
        device.copyInto(parameter, masters[i]!);
      });
      await device.scope(async () => {
        const loss = await kind.loss(working, { first: 0, count: kind.batch }, step);
        await device.backward(loss, { gradient: device.full([], SCALE, { dtype: loss.dtype }) });
        parameters.forEach(({ grad }, i) => {
          masters[i]!.grad = cast(grad!, 'f32');
        });
        const { scale } = await clipGradNorm(masters, CLIP, { unscale: 1 / SCALE });
        await optimizer.step({ gradScale: scale });
        for (const master of masters) {
          master.grad = undefined;
        }
      });
      working.zeroGrad();
    }
    return { start, end: await weightsOf(named, masters) };
  });
  return result!;
}

async function weightsOf(
  named: readonly (readonly [string, Tensor])[],
  masters: readonly Tensor[],
): Promise<Weights> {
  const weights: Weights = new Map();
  for (const [i, [name]] of named.entries()) {
    weights.set(name, (await masters[i]!.toArray()) as Float32Array);
  }
  return weights;
}

const PLAIN = new Map<string, ReturnType<typeof plainRun>>();

/** Returns the unsharded run, which is made once for all cells that are compared with it. */
function plain(name: string, dtype: 'f32' | 'f16'): ReturnType<typeof plainRun> {
  const key = `${name} ${dtype}`;
  const known = PLAIN.get(key) ?? plainRun(KINDS[name]!, dtype);
  PLAIN.set(key, known);
  return known;
}

async function shardedRun(rank: Rank, kind: Kind, options: object): Promise<Weights> {
  const { device, group, worldSize } = rank;
  const wrap: Wrap = (module) =>
    new FullyShardedDataParallel(module, { processGroup: group, ...options });
  const model = kind.build(device, wrap) as FullyShardedDataParallel;
  const optimizer = new Sgd(model.parameters(), HYPER);
  const scaler = new GradScaler(model, { initScale: SCALE });
  const count = kind.batch / worldSize;
  for (let step = 0; step < STEPS; step++) {
    await device.scope(async () => {
      const loss = await kind.loss(model, { first: rank.rank * count, count }, step);
      await scaler.scale(loss).backward();
    });
    await scaler.unscale(optimizer);
    await device.scope(async () => {
      const { scale } = await clipGradNorm(model, CLIP);
      expect(await scaler.step(optimizer, { gradScale: scale })).toBe(true);
    });
    scaler.update();
    optimizer.zeroGrad();
  }
  for (const instance of model.instances()) {
    expect(instance.trainingState).toBe('idle');
  }
  const metadata = localMetadataDict(model);
  expect(JSON.parse(JSON.stringify(metadata))).toEqual(metadata);
  const weights: Weights = new Map();
  for (const [name, { dtype, data }] of await stateDict(model)) {
    expect(isFloat(dtype) && dtype).toBe('f32');
    weights.set(name, new Float32Array(data.slice().buffer));
  }
  return weights;
}

const CELLS = [true, false].flatMap((reshardAfterForward) =>
  [true, false].flatMap((mixedPrecision) =>
    [true, false].map((flattenParameters) => ({
      reshardAfterForward,
      mixedPrecision,
      flattenParameters,
    })),
  ),
);

describe.each(Object.keys(KINDS))('%s', (name) => {
  const kind = KINDS[name]!;
  const worldSizes = kind.batch === 2 ? [2] : [1, 2, 3];

  it.each(CELLS)(
    'reshard $reshardAfterForward, mixed $mixedPrecision, flatten $flattenParameters',
    async (cell) => {
      const dtype = cell.mixedPrecision ? 'f16' : 'f32';
      const { start, end } = await plain(name, dtype);
      const moved = Math.max(
        ...[...end].flatMap(([key, values]) =>
          [...values].map((v, i) => Math.abs(v - start.get(key)![i]!)),
        ),
      );
      expect(moved).toBeGreaterThan(20 * TOLERANCE[dtype]);
      for (const worldSize of worldSizes) {
        const perRank = await onRanks(worldSize, (rank) => shardedRun(rank, kind, cell));
        for (const weights of perRank) {
          expect(weights).toEqual(perRank[0]);
        }
        expect([...perRank[0]!.keys()]).toEqual([...end.keys()]);
        for (const [key, values] of perRank[0]!) {
          const wanted = end.get(key)!;
          const worst = Math.max(...values.map((value, i) => Math.abs(value - wanted[i]!)));
          expect(worst, `${key} over ${worldSize} ranks`).toBeLessThanOrEqual(TOLERANCE[dtype]);
        }
      }
    },
  );
});
