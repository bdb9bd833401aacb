// These are the axes along which FSDP's features combine, and one small model that has all of them.
// A cell is a value of each axis.

import { type FsdpOptions, FullyShardedDataParallel } from '@shardweave/fsdp';
import {
  AdamW,
  checkpoint,
  clipGradNorm,
  Dropout,
  GradScaler,
  Linear,
  type Module,
  type Optimizer,
  Sgd,
} from '@shardweave/nn';
import { createHostStore } from '@shardweave/shard-store';
import { add, type Device, linear, type Tensor, tanh } from '@shardweave/tensor-core';
import { expect } from 'vitest';
import {
  DIM,
  freeze,
  inputs,
  largestDifference,
  lossOf,
  moduleOf,
  onRanks,
  type Rank,
  type Rows,
  stepped,
  TOLERANCE,
  type Trained,
  weightsOf,
} from '../../../../tooling/test-kit/index.ts';
import { expectIdle, wrapIn } from './sharding.js';

export const AXES = {
  ranks: ['2', '3', '1', '8', '2 x 2 replicas'],
  checkpointing: ['none', 'inside', 'around'],
  resharding: ['all but the root', 'none', 'the root too'],
  precision: ['f32', 'f16', 'f16, reduced in f32', 'bf16'],
  residence: ['device', 'gradients on the host', 'all on the host', 'a store'],
  accumulation: ['none', 'noSync', 'synchronized'],
  forwards: [1, 2],
  stepping: ['SGD', 'SGD, clipped and scaled', 'AdamW'],
  dropout: [0, 0.3],
  tied: [true, false],
  frozen: ['nothing', 'weights', 'units'],
  shape: ['uneven', 'even'],
  nesting: ['blocks', 'deep', 'root', 'twice'],
  flattenParameters: [true, false, 'groups'],
  bucketCapMb: [25, 0],
} as const;

export type Cell = { readonly [K in keyof typeof AXES]: (typeof AXES)[K][number] };

/** A cell that runs sharded. */
interface ShardedCell extends Cell {
  /** Whether each rank has what is trained whole. Default: it is sharded, too. */
  readonly isWhole?: boolean;
}

/** It divides over 1, 2, 3, 4 or 8 ranks and two micro-batches. */
const BATCH = 48;
const CLIP = 0.02;

type Block = Module<[x: Tensor], Tensor>;
type WrapBlock = (module: Block, name: string) => Block;

/** Makes a layer that uses another module's weight transposed, with a bias of its own. */
function tiedTo(device: Device, weight: Tensor, outFeatures: number): Block {
  return moduleOf(
    device,
    { weight, bias: device.zeros([outFeatures]) },
    ({ weight, bias }, x: Tensor) => add(linear(x, { weight, transposeWeight: false }), bias),
  );
}

function inRow(device: Device, parts: Readonly<Record<string, Block>>): Block {
  return moduleOf(device, parts, async (present, x: Tensor) => {
    let hidden = x;
    for (const part of Object.values(present)) {
      hidden = await part.call(hidden);
    }
    return hidden;
  });
}

/** Makes two layers with dropout and a residual connection. Tied ones share one weight. */
function blockOf(device: Device, dim: number, { tied, dropout }: Cell): Block {
  const up = new Linear(device, { inFeatures: dim, outFeatures: dim + 1 });
  const down = tied
    ? tiedTo(device, up.weight, dim)
    : new Linear(device, { inFeatures: dim + 1, outFeatures: dim });
  const drop = new Dropout(device, { p: dropout });
  return moduleOf(device, { up, drop, down }, async ({ up, drop, down }, x: Tensor) =>
    add(x, await down.call(await drop.call(tanh(await up.call(x))))),
  );
}

/** Builds a cell's model. In the plain run `wrap` returns modules as they are. */
function build(device: Device, cell: Cell, wrap: WrapBlock): Module {
  const dim = cell.shape === 'even' ? 8 : 7; // 8 x 16 elements are a whole block of 128.
  const { checkpointing, nesting } = cell;
  const inner: WrapBlock = (module, name) => {
    const once = nesting === 'root' ? module : wrap(module, name);
    return nesting === 'twice' ? wrap(once, `${name} again`) : once;
  };
  const block = (name: string) => {
    const bare = blockOf(device, dim, cell);
    if (checkpointing === 'inside') {
      return inner(checkpoint(bare), name);
    }
    return checkpointing === 'around' ? checkpoint(inner(bare, name)) : inner(bare, name);
  };
  const stem = new Linear(device, { inFeatures: DIM, outFeatures: dim });
  const middle = inRow(device, {
    first: block('first'),
    own: new Linear(device, { inFeatures: dim, outFeatures: dim }),
    second: block('second'),
  });
  const head = cell.tied
    ? tiedTo(device, stem.weight, DIM)
    : new Linear(device, { inFeatures: dim, outFeatures: DIM });
  const model = inRow(device, {
    stem,
    middle: nesting === 'deep' ? wrap(middle, 'middle') : middle,
    head,
  });
  if (cell.frozen !== 'nothing') {
    // The blocks are wrapped by now, and the root is not.
    const which = cell.frozen === 'weights' ? /(first|second).*weight/ : /^(stem|middle\.first)\b/;
    freeze(model, (name) => which.test(name));
  }
  return wrap(model, 'root');
}

function optionsOf(cell: ShardedCell): Partial<FsdpOptions> {
  const { precision, residence } = cell;
  const isOnHost = residence === 'all on the host';
  return {
    reshardAfterForward: cell.resharding !== 'none',
    disableReshardOnRoot: cell.resharding !== 'the root too',
    bucketCapMb: cell.bucketCapMb,
    shardTrained: cell.isWhole !== true,
    ...(precision === 'f32'
      ? {}
      : {
          mixedPrecision: true,
          computeDType: precision === 'bf16' ? 'bf16' : 'f16',
          fp32ReduceScatter: precision === 'f16, reduced in f32',
        }),
    ...(residence === 'a store'
      ? { offloadConfig: { store: createHostStore() } }
      : { moveParamsToCpu: isOnHost, moveGradsToCpu: residence !== 'device' }),
  };
}

/** Returns what wraps the parts of one rank's model. */
async function wrapFor(rank: Rank, cell: ShardedCell): Promise<WrapBlock> {
  const options = optionsOf(cell);
  const replicas =
    cell.ranks === '2 x 2 replicas'
      ? {
          processGroup: await rank.group.split(Math.floor(rank.rank / 2)),
          replicateGroup: await rank.group.split(rank.rank % 2),
        }
      : {};
  const wrap = wrapIn(rank, { ...options, ...replicas });
  return (module, name) => {
    const own = module.parameters().filter((tensor) => tensor.piece === undefined);
    const params = own.filter((_, i) => i % 2 === 0);
    const isGrouped = cell.flattenParameters === 'groups' && params.length > 0;
    const groups = isGrouped ? [{ name: 'every other', params }] : true;
    const flattenParameters = cell.flattenParameters === 'groups' ? groups : cell.flattenParameters;
    return wrap(module, { name, flattenParameters });
  };
}

function optimizerOf(model: Module, { stepping }: Cell): Optimizer<object> {
  if (stepping === 'AdamW') {
    // With a large eps the step is a smooth function of the gradient, as roundings need it.
    return new AdamW(model.parameters(), { lr: 0.2, eps: 0.1, weightDecay: 0.1 });
  }
  return new Sgd(model.parameters(), { lr: stepping === 'SGD' ? 0.3 : 3, momentum: 0.9 });
}

/** Trains a cell's model on a rank's rows. */
async function trained(model: Module, rows: Rows, cell: Cell): Promise<Trained> {
  const { device } = model;
  const { accumulation, forwards, stepping } = cell;
  const optimizer = optimizerOf(model, cell);
  const isClipped = stepping === 'SGD, clipped and scaled';
  const scaler = isClipped ? new GradScaler(model, { initScale: 2 ** 8 }) : undefined;
  /** Runs the backward of one micro-batch, whose mean counts as `weight` of the step's. */
  const backwardOf = ({ first, count }: Rows, step: number, weight: number) =>
    device.scope(async () => {
      device.random.begin({ step, rowOffset: first });
      let loss = device.full([], 0);
      for (let i = 0; i < forwards; i++) {
        const x = inputs(device, { first, count }, step + 9 * i);
        loss = add(loss, lossOf(await model.call(x)));
      }
      const gradient = device.full([], weight);
      await (scaler?.scale(loss) ?? loss).backward({ gradient });
      return weight * (await loss.item());
    });
  const run = async (step: number) => {
    if (accumulation === 'none') {
      return backwardOf(rows, step, 1);
    }
    const count = rows.count / 2;
    const first = () => backwardOf({ first: rows.first, count }, step, 0.5);
    const isApart = accumulation === 'noSync' && model instanceof FullyShardedDataParallel;
    const loss = isApart ? await model.noSync(first) : await first();
    return loss + (await backwardOf({ first: rows.first + count, count }, step, 0.5));
  };
  const steps = scaler === undefined ? optimizer : clipping(model, optimizer, scaler);
  const losses = await stepped(steps, [0, 1], run);
  const weights = await weightsOf(model);
  optimizer.dispose();
  return { losses, weights: [weights] };
}

/** Steps an optimizer with unscaled and clipped gradients. */
function clipping(model: Module, optimizer: Optimizer<object>, scaler: GradScaler) {
  const step = async () => {
    await scaler.unscale(optimizer);
    await model.device.scope(async () => {
      const { norm, scale } = await clipGradNorm(model, CLIP);
      expect(await norm.item()).toBeGreaterThan(CLIP);
      expect(await scaler.step(optimizer, { gradScale: scale })).toBe(true);
    });
    scaler.update();
  };
  return { step, zeroGrad: () => optimizer.zeroGrad() };
}

const plainRuns = new Map<string, Promise<Trained>>();

/** Trains an unsharded model the same way in f32 with whole batches, once for all cells. */
export function plainOutcome(cell: Cell): Promise<Trained> {
  const { tied, frozen, shape, forwards, stepping, dropout } = cell;
  const key = [tied, frozen, shape, forwards, stepping, dropout].join();
  const run =
    plainRuns.get(key) ??
    onRanks(1, async ({ device }) => {
      const plain = { ...cell, accumulation: 'none', checkpointing: 'none' } as const;
      const model = build(device, plain, (module) => module);
      const start = await weightsOf(model);
      const outcome = await trained(model, { first: 0, count: BATCH }, plain);
      const moved = [...start].map(([name, values]) =>
        largestDifference(values, outcome.weights[0]!.get(name)!),
      );
      expect(Math.max(...moved)).toBeGreaterThan(8 * TOLERANCE.f16);
      return outcome;
    }).then(([first]) => first!);
  plainRuns.set(key, run);
  return run;
}

/** Trains a cell's ranks. Expects them to leave nothing behind. */
export function shardedOutcomes(cell: ShardedCell): Promise<Trained[]> {
  const numRanks = cell.ranks === '2 x 2 replicas' ? 4 : Number(cell.ranks);
  const count = BATCH / numRanks;
  const isElsewhere = cell.residence === 'all on the host' || cell.residence === 'a store';
  return onRanks(numRanks, async (rank) => {
    const { device } = rank;
    const model = build(device, cell, await wrapFor(rank, cell)) as FullyShardedDataParallel;
    const outcome = await trained(model, { first: rank.rank * count, count }, cell);
    expectIdle(model);
    expect(device.memory().live).toMatchObject({
      ...{ gathered: 0, gradient: 0, staging: 0, activation: 0 },
      ...(isElsewhere ? { parameter: 0, optimizer: 0 } : {}),
    });
    model.dispose();
    expect(device.memory().live.total).toBe(0);
    return outcome;
  });
}

/** Returns how far a cell's losses and weights may be from the plain run's. */
export function toleranceOf({ precision }: Cell): number {
  return TOLERANCE[precision === 'f16, reduced in f32' ? 'f16' : precision];
}

export function titleOf(cell: Cell): string {
  return Object.entries(cell)
    .map(([axis, value]) => `${axis} ${value}`)
    .join('; ');
}
