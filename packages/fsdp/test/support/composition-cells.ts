// These are the axes along which FSDP's features combine, one small model that has all of them, and
// the comparison of a cell's run with one process.

import { type FsdpOptions, FullyShardedDataParallel } from '@shardweave/fsdp';
import { checkpoint, Linear, Module, Sgd } from '@shardweave/nn';
import { add, type Device, linear, type Tensor, tanh } from '@shardweave/tensor-core';
import { expect } from 'vitest';
import { onRanks } from './ranks.js';
import { inputs, lossOf, type Rows, weightsOf } from './scenarios.js';

export const AXES = {
  worldSize: [2, 3, 1],
  checkpointing: ['none', 'inside', 'around'],
  resharding: [true, false],
  precision: ['f32', 'f16', 'f16, reduced in f32'],
  residence: ['device', 'gradients on the host', 'all on the host'],
  accumulation: ['none', 'noSync', 'synchronized'],
  tied: [true, false],
  frozen: ['nothing', 'weights', 'units'],
  shape: ['uneven', 'even'],
  nesting: ['blocks', 'deep', 'root'],
  flattenParameters: [true, false],
  bucketCapMb: [25, 0],
} as const;

export type Cell = { readonly [K in keyof typeof AXES]: (typeof AXES)[K][number] };

const STEPS = 2;
const BATCH = 12; // It divides over 1, 2 or 3 ranks and two micro-batches.
/** The width of the scenarios' inputs(). */
const IN = 6;

/**
 * The limit for f32 is the rounding of sums in another order. For f16 it is a few roundings of
 * 2^-11 of values below 2.
 */
const TOLERANCE = { f32: 2e-6, f16: 4e-3, 'f16, reduced in f32': 4e-3 } as const;

/** This module uses another module's weight transposed, with a bias of its own. */
class Tied extends Module<[x: Tensor], Tensor> {
  constructor(device: Device, weight: Tensor, outFeatures: number) {
    super(device);
    this.sharedParameter('weight', weight);
    this.parameter('bias', device.zeros([outFeatures]));
  }
  forward(x: Tensor): Tensor {
    const [weight, bias] = [...this.ownParameters().values()] as [Tensor, Tensor];
    return add(linear(x, { weight, transposeWeight: false }), bias);
  }
}

/**
 * This module has two layers and a residual connection. With `tied` both layers share one weight.
 */
class Block extends Module<[x: Tensor], Tensor> {
  constructor(device: Device, dim: number, isTied: boolean) {
    super(device);
    const hidden = dim + 1;
    const up = this.child('up', new Linear(device, { inFeatures: dim, outFeatures: hidden }));
    const weight = up.ownParameters().get('weight')!;
    this.child(
      'down',
      isTied
        ? new Tied(device, weight, dim)
        : new Linear(device, { inFeatures: hidden, outFeatures: dim }),
    );
  }
  async forward(x: Tensor): Promise<Tensor> {
    const { up, down } = Object.fromEntries(this.children());
    return add(x, (await down!.call(tanh((await up!.call(x)) as Tensor))) as Tensor);
  }
}

class Row extends Module<[x: Tensor], Tensor> {
  constructor(device: Device, parts: Readonly<Record<string, Module>>) {
    super(device);
    for (const [name, part] of Object.entries(parts)) {
      this.child(name, part);
    }
  }
  async forward(x: Tensor): Promise<Tensor> {
    let hidden = x;
    for (const part of this.children().values()) {
      hidden = (await part.call(hidden)) as Tensor;
    }
    return hidden;
  }
}

type Wrap = (module: Module<[x: Tensor], Tensor>, name: string) => Module<[x: Tensor], Tensor>;

/** Builds a cell's model. In the plain run `wrap` returns modules as they are. */
function build(device: Device, cell: Cell, wrap: Wrap): Module {
  const dim = cell.shape === 'even' ? 8 : 7; // 8 x 16 elements are a whole block of 128.
  const { checkpointing, nesting } = cell;
  const isInner = nesting !== 'root';
  const inner: Wrap = (module, name) => (isInner ? wrap(module, name) : module);
  const block = (name: string) => {
    const bare = new Block(device, dim, cell.tied);
    if (checkpointing === 'inside') {
      return inner(checkpoint(bare), name);
    }
    return checkpointing === 'around' ? checkpoint(inner(bare, name)) : inner(bare, name);
  };
  const stem = new Linear(device, { inFeatures: IN, outFeatures: dim });
  const middle = new Row(device, {
    first: block('first'),
    own: new Linear(device, { inFeatures: dim, outFeatures: dim }),
    second: block('second'),
  });
  const head = cell.tied
    ? new Tied(device, stem.ownParameters().get('weight')!, IN)
    : new Linear(device, { inFeatures: dim, outFeatures: IN });
  const model = new Row(device, {
    stem,
    middle: nesting === 'deep' ? wrap(middle, 'middle') : middle,
    head,
  });
  freeze(model, cell.frozen);
  return wrap(model, 'root');
}

/** Freezes parameters after the blocks are wrapped and before the root is. */
function freeze(model: Module, what: Cell['frozen']): void {
  for (const [name, tensor] of model.namedParameters()) {
    const isBlockWeight = /(first|second).*weight/.test(name);
    if (what === 'weights' && isBlockWeight) {
      tensor.requiresGrad = false;
    }
    if (what === 'units' && /^(stem|middle\.first)\b/.test(name)) {
      tensor.requiresGrad = false;
    }
  }
}

function optionsOf(cell: Cell): Partial<FsdpOptions> {
  return {
    reshardAfterForward: cell.resharding,
    flattenParameters: cell.flattenParameters,
    bucketCapMb: cell.bucketCapMb,
    ...(cell.precision === 'f32'
      ? {}
      : {
          mixedPrecision: true,
          computeDType: 'f16' as const,
          fp32ReduceScatter: cell.precision !== 'f16',
        }),
    moveParamsToCpu: cell.residence === 'all on the host',
    moveGradsToCpu: cell.residence !== 'device',
  };
}

interface Outcome {
  readonly losses: readonly number[];
  readonly weights: ReadonlyMap<string, Float32Array>;
}

/** Runs the backward of one micro-batch, whose mean counts as `weight` of the step's. */
function backwardOf(model: Module, rows: Rows, step: number, weight: number): Promise<number> {
  const { device } = model;
  return device.scope(async () => {
    const loss = lossOf((await model.call(inputs(device, rows, step))) as Tensor);
    await loss.backward({ gradient: device.full([], weight) });
    return weight * (await loss.item());
  });
}

async function stepped(
  model: Module,
  rows: Rows,
  step: number,
  accumulation: Cell['accumulation'],
): Promise<number> {
  if (accumulation === 'none') {
    return backwardOf(model, rows, step, 1);
  }
  const count = rows.count / 2;
  const first = () => backwardOf(model, { first: rows.first, count }, step, 0.5);
  const isApart = accumulation === 'noSync' && model instanceof FullyShardedDataParallel;
  const loss = isApart ? await model.noSync(first) : await first();
  return loss + (await backwardOf(model, { first: rows.first + count, count }, step, 0.5));
}

async function trained(model: Module, rows: Rows, cell: Cell): Promise<Outcome> {
  const optimizer = new Sgd(model.parameters(), { lr: 0.3, momentum: 0.9 });
  const losses: number[] = [];
  for (let step = 0; step < STEPS; step++) {
    losses.push(await stepped(model, rows, step, cell.accumulation));
    await optimizer.step();
    optimizer.zeroGrad();
  }
  return { losses, weights: await weightsOf(model) };
}

const plainOutcomes = new Map<string, Promise<Outcome>>();

/** Trains an unsharded model the same way in f32 with whole batches. */
function plainOutcome(cell: Cell): Promise<Outcome> {
  const key = `${cell.tied} ${cell.frozen} ${cell.shape}`;
  const known = plainOutcomes.get(key);
  if (known !== undefined) {
    return known;
  }
  const plain: Cell = { ...cell, accumulation: 'none', checkpointing: 'none' };
  const outcome = onRanks(1, ({ device }) =>
    trained(
      build(device, plain, (module) => module),
      { first: 0, count: BATCH },
      plain,
    ),
  ).then(([first]) => first!);
  plainOutcomes.set(key, outcome);
  return outcome;
}

/**
 * Expects that a cell's ranks have the losses and weights of one process, and leave nothing behind.
 */
export async function expectAsOneProcess(cell: Cell): Promise<void> {
  const plain = await plainOutcome(cell);
  const { worldSize } = cell;
  const count = BATCH / worldSize;
  const perRank = await onRanks(worldSize, async ({ device, group, rank }) => {
    const options = { processGroup: group, ...optionsOf(cell) };
    const model = build(
      device,
      cell,
      (module, name) => new FullyShardedDataParallel(module, { ...options, name }),
    ) as FullyShardedDataParallel;
    const outcome = await trained(model, { first: rank * count, count }, cell);
    for (const instance of model.instances()) {
      instance.assertState('idle');
    }
    const { live } = device.memory();
    expect(live).toMatchObject({ gathered: 0, gradient: 0, staging: 0, activation: 0 });
    model.dispose();
    return outcome;
  });
  const tolerance = TOLERANCE[cell.precision];
  plain.losses.forEach((loss, step) => {
    const mean = perRank.reduce((sum, { losses }) => sum + losses[step]!, 0) / worldSize;
    expectNear(mean, loss, tolerance, `loss of step ${step}`);
  });
  for (const { weights } of perRank) {
    expect([...weights.keys()].sort()).toEqual([...plain.weights.keys()].sort());
    for (const [name, values] of weights) {
      const wanted = plain.weights.get(name)!;
      values.forEach((value, i) => {
        expectNear(value, wanted[i]!, tolerance, `${name}[${i}]`);
      });
    }
  }
}

function expectNear(value: number, wanted: number, tolerance: number, what: string): void {
  if (!(Math.abs(value - wanted) <= tolerance)) {
    expect.fail(`${what}: expected ${wanted} within ${tolerance}, got ${value}`);
  }
}

export function titleOf(cell: Cell): string {
  return Object.entries(cell)
    .map(([axis, value]) => `${axis} ${value}`)
    .join('; ');
}
