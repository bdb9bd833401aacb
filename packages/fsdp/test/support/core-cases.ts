// The core of what fsdp promises stands here as programs for one of two ranks over any group and
// device: ranks in one process, processes over sockets, WebGPU. It depends on no test runner.

import assert from 'node:assert/strict';
import { pieceDirectory } from '@shardweave/checkpoint/node';
import { type FsdpOptions, FullyShardedDataParallel } from '@shardweave/fsdp';
import {
  gatherFullOptimStateDict,
  loadLocalStateDict,
  localStateDict,
  summonFullParams,
} from '@shardweave/fsdp/fairscale';
import {
  AdamW,
  BatchNorm1d,
  clipGradNorm,
  GradScaler,
  Linear,
  loadCheckpoint,
  loadStateDict,
  type Module,
  Sgd,
  type StateDict,
  saveCheckpoint,
  stateDict,
} from '@shardweave/nn';
import type { Device } from '@shardweave/tensor-core';
import {
  DIM,
  expectClose,
  inputs,
  layer,
  lossOf,
  type Rank,
  Stack,
  stepped,
  TOLERANCE,
  textOf,
  trainOnce,
  weightsOf,
} from '../../../../tooling/test-kit/index.ts';
import { backwardOf, Dot, Dots, firstGradients } from './dots.js';
import { wrapIn } from './sharding.js';

export interface CoreCase {
  readonly name: string;
  /**
   * Runs the case on one rank. Every rank runs it. Rejects where a promise is not kept.
   *
   * @param directory an empty directory, the same on all ranks
   */
  run(rank: Rank, directory: string): Promise<void>;
}

/** The rows of a global batch. */
const BATCH = 12;

type WrapModule = (module: Module) => Module;

/** Gives every parameter its own values, the same wherever the module is made. */
function withValues<M extends Module>(module: M, seed = 0): M {
  const { device } = module;
  module.parameters().forEach((tensor, index) => {
    const values = Float32Array.from(
      { length: tensor.size },
      (_, i) => 0.3 * Math.sin(1 + i + 17 * index + seed),
    );
    device.copyInto(tensor, device.tensor(values, tensor.shape));
  });
  return module;
}

/**
 * Makes a model whose weights shards cut. The middle one is in an instance of its own, and the
 * batch norm has buffers.
 */
function net(
  device: Device,
  wrap: WrapModule,
  options: { readonly hasBuffers?: boolean; readonly seed?: number } = {},
): Module {
  const { hasBuffers = false, seed = 0 } = options;
  const linear = (inFeatures: number, outFeatures: number, at: number) =>
    withValues(new Linear(device, { inFeatures, outFeatures }), seed + at);
  return wrap(
    new Stack(device, [
      linear(DIM, 45, 1),
      wrap(linear(45, 41, 2)),
      ...(hasBuffers ? [wrap(new BatchNorm1d(device, { numFeatures: 41 }))] : []),
      linear(41, DIM, 3),
    ]),
  );
}

function sharded(
  rank: Rank,
  options: Partial<FsdpOptions> = {},
  seed = 0,
): FullyShardedDataParallel {
  const made = net(rank.device, wrapIn(rank, options), { hasBuffers: true, seed });
  return made as FullyShardedDataParallel;
}

async function train(
  { rank, worldSize }: Rank,
  model: Module,
  optimizer: AdamW,
  steps: readonly number[],
): Promise<void> {
  const count = BATCH / worldSize;
  await stepped(optimizer, steps, (step) => trainOnce(model, { first: rank * count, count }, step));
}

function adam(model: Module): AdamW {
  return new AdamW(model.parameters(), { lr: 1e-2, weightDecay: 0.1 });
}

/** Returns the bare module's dict, as text. */
async function bareText(device: Device, hasBuffers: boolean): Promise<Record<string, string>> {
  const bare = net(device, (module) => module, { hasBuffers });
  const text = textOf(await stateDict(bare));
  bare.dispose();
  return text;
}

async function trainsAsOneProcess(rank: Rank): Promise<void> {
  const { device } = rank;
  const plain = net(device, (module) => module);
  const model = net(device, wrapIn(rank)) as FullyShardedDataParallel;
  const options = { lr: 0.5, momentum: 0.9 };
  const [alone, together] = [
    new Sgd(plain.parameters(), options),
    new Sgd(model.parameters(), options),
  ];
  const count = BATCH / rank.worldSize;
  const clipped = (each: Module, optimizer: Sgd) =>
    device.scope(async () => {
      const { norm, scale } = await clipGradNorm(each, 0.01);
      await optimizer.step({ gradScale: scale });
      optimizer.zeroGrad();
      return norm.item();
    });
  for (let step = 0; step < 3; step++) {
    await trainOnce(plain, { first: 0, count: BATCH }, step);
    const norm = await clipped(plain, alone);
    await trainOnce(model, { first: rank.rank * count, count }, step);
    const total = await clipped(model, together);
    assert.ok(norm > 0.01 && Math.abs(total - norm) < TOLERANCE.f32, `norm ${norm}, got ${total}`);
  }
  expectClose(await weightsOf(model), await weightsOf(plain));
  for (const each of [alone, together, plain, model]) {
    each.dispose();
  }
}

async function statesGoOutAndIn(rank: Rank): Promise<void> {
  const { device } = rank;
  const model = sharded(rank);
  assert.deepEqual(textOf(await stateDict(model)), await bareText(device, true));
  const optimizer = adam(model);
  await train(rank, model, optimizer, [0, 1]);
  const whole = await stateDict(model);
  assert.notDeepEqual(textOf(whole), await bareText(device, true));

  const other = sharded(rank, { reshardAfterForward: false, flattenParameters: false }, 50);
  await loadStateDict(other, whole);
  // Running statistics of batch norms belong to each rank, and so does its dict.
  assert.deepEqual(textOf(await stateDict(other)), textOf(whole));
  const forFirst = await stateDict(model, { stateDictOnRank0Only: true });
  assert.deepEqual(textOf(forFirst), rank.rank === 0 ? textOf(whole) : {});

  const own = await localStateDict(model);
  await train(rank, model, optimizer, [2]);
  assert.notDeepEqual(textOf(await stateDict(model)), textOf(whole));
  await loadLocalStateDict(model, own);
  assert.deepEqual(textOf(await stateDict(model)), textOf(whole));
  for (const each of [optimizer, model, other]) {
    each.dispose();
  }
}

async function summonShowsAndKeeps(rank: Rank): Promise<void> {
  const { device, group } = rank;
  const model = net(device, wrapIn(rank)) as FullyShardedDataParallel;
  const bare = await bareText(device, false);
  const summoned = async () => {
    const entries: StateDict = new Map();
    for (const [name, tensor] of model.namedParameters()) {
      entries.set(name, { dtype: tensor.dtype, shape: tensor.shape, data: await tensor.toBytes() });
    }
    return textOf(entries);
  };
  assert.deepEqual(await summonFullParams(model, summoned), bare);
  const fillAll = (value: number) => {
    for (const tensor of model.parameters()) {
      device.backend.run('fill', { out: tensor.view(), value });
    }
  };
  await summonFullParams(model, () => fillAll(9), { volatile: true });
  assert.deepEqual(textOf(await stateDict(model)), bare);
  // Each rank writes its own number, which only its own shard keeps.
  await summonFullParams(model, () => fillAll(1 + group.rank));
  const values = [...(await stateDict(model)).values()].flatMap(({ data }) => [
    ...new Float32Array(data.slice().buffer),
  ]);
  assert.deepEqual([values[0], new Set(values)], [1, new Set([1, 2])]);
  const thrown = summonFullParams(model, () => {
    throw new Error('inside');
  });
  await assert.rejects(thrown, /inside/);
  model.assertState('idle');
  model.dispose();
}

async function noSyncAddsUp(rank: Rank): Promise<void> {
  const LENGTH = 256; // Both ranks hold some of it.
  for (const options of [{}, { mixedPrecision: true, computeDType: 'bf16' }] as const) {
    const wrap = wrapIn(rank, options);
    const inner = new Dots(
      rank.device,
      [0, 1].map(() => wrap(new Dot(rank.device, LENGTH))),
    );
    const model = wrap(inner);
    // In bf16, 256 + 1 is 256.
    await model.noSync(async () => {
      for (const value of [256, 1, 1]) {
        await backwardOf(model, LENGTH, value);
      }
    });
    assert.deepEqual(await firstGradients(model), [undefined, undefined]);
    inner.chosen = [1]; // The last backward doesn't reach the first part.
    await backwardOf(model, LENGTH, 2 + 4 * rank.rank);
    assert.deepEqual(await firstGradients(model), [258, 258 + 4]);
    model.zeroGrad();
    const thrown = model.noSync(() => {
      throw new Error('a bad batch');
    });
    await assert.rejects(thrown, /a bad batch/);
    await backwardOf(model, LENGTH, 2);
    assert.deepEqual(await firstGradients(model), [undefined, 2]);
    model.dispose();
  }
}

async function savesComeBack(rank: Rank, directory: string): Promise<void> {
  const files = () => pieceDirectory(directory);
  const first = sharded(rank);
  const optimizer = adam(first);
  await train(rank, first, optimizer, [0, 1]);
  await saveCheckpoint(first, files(), { optimizer, extra: { step: 2 } });

  const second = sharded(rank, { flattenParameters: false }, 50);
  const fresh = adam(second);
  const extra = await loadCheckpoint(second, files(), { optimizer: fresh });
  assert.deepEqual(extra, { step: 2 });
  const everything = async (model: FullyShardedDataParallel, its: AdamW) => {
    const full = await gatherFullOptimStateDict(model, its);
    const state = [...(full?.state ?? [])].map(([name, { step, tensors }]) => {
      return [name, step, textOf(tensors)];
    });
    // A save has the first rank's running statistics; a dict has the rank's own.
    const dict = Object.entries(textOf(await stateDict(model)));
    return [dict.filter(([name]) => rank.rank === 0 || !name.includes('running')), state];
  };
  assert.deepEqual(await everything(second, fresh), await everything(first, optimizer));
  await train(rank, first, optimizer, [2]);
  await train(rank, second, fresh, [2]);
  assert.deepEqual(await everything(second, fresh), await everything(first, optimizer));
  for (const each of [optimizer, fresh, first, second]) {
    each.dispose();
  }
}

async function expertsStayApart(rank: Rank, directory: string): Promise<void> {
  const { device, group } = rank;
  const alone = await group.split(rank.rank);
  const make = (seed: number) => {
    const expert = withValues(layer(device), seed + 10 * rank.rank);
    const shared = withValues(layer(device), seed);
    return { expert, shared };
  };
  const wrapped = (seed: number) => {
    const { expert, shared } = make(seed);
    const own = new FullyShardedDataParallel(expert, { processGroup: alone, name: 'expert' });
    return wrapIn(rank)(new Stack(device, [shared, own]));
  };
  const plain = make(1);
  const byHand = new Stack(device, [plain.shared, plain.expert]);
  const model = wrapped(1);
  const optimizers = [byHand, model].map((each) => new Sgd(each.parameters(), { lr: 0.5 }));
  for (let step = 0; step < 2; step++) {
    for (const [index, each] of [byHand, model].entries()) {
      await device.scope(async () => {
        const x = inputs(device, { first: 3 * rank.rank, count: 3 }, step);
        await lossOf(await each.call(x)).backward();
      });
      if (each === byHand) {
        for (const tensor of plain.shared.parameters()) {
          const bytes = await tensor.grad!.toBytes();
          await group.allReduce(bytes, bytes, { dtype: 'f32', op: 'mean' });
          tensor.grad!.storage.write(bytes);
        }
      }
      await optimizers[index]!.step();
      optimizers[index]!.zeroGrad();
    }
  }
  expectClose(await weightsOf(model), await weightsOf(byHand));
  await saveCheckpoint(model, pieceDirectory(directory));
  const other = wrapped(50);
  await loadCheckpoint(other, pieceDirectory(directory));
  assert.deepEqual(textOf(await stateDict(other)), textOf(await stateDict(model)));
  for (const each of [...optimizers, byHand, model, other]) {
    each.dispose();
  }
  await alone.close();
}

async function overflowSkipsEverywhere(rank: Rank): Promise<void> {
  const { device } = rank;
  const model = net(device, wrapIn(rank)) as FullyShardedDataParallel;
  const optimizer = new Sgd(model.parameters(), { lr: 0.1 });
  const scaler = new GradScaler(model);
  const step = async (isOverflowing: boolean) => {
    await device.scope(async () => {
      const x = inputs(device, { first: rank.rank, count: 1 });
      await scaler.scale(lossOf(await model.call(x))).backward();
    });
    if (isOverflowing && rank.rank === rank.worldSize - 1) {
      const { grad } = model.units[0]!.flat;
      device.backend.run('fill', {
        out: grad!.storage.view(3, 1),
        value: Number.POSITIVE_INFINITY,
      });
    }
    const hasStepped = await scaler.step(optimizer);
    scaler.update();
    optimizer.zeroGrad();
    return hasStepped;
  };
  const before = await bareText(device, false);
  assert.deepEqual([await step(true), scaler.factor], [false, 2 ** 15]);
  assert.deepEqual(textOf(await stateDict(model)), before);
  assert.deepEqual([await step(false), scaler.factor], [true, 2 ** 15]);
  assert.notDeepEqual(textOf(await stateDict(model)), before);
  for (const each of [optimizer, model]) {
    each.dispose();
  }
}

/** Wraps a case so that it also checks that nothing is left on the device. */
function leavingNothing(run: CoreCase['run']): CoreCase['run'] {
  return async (rank, directory) => {
    await rank.device.scope(() => run(rank, directory));
    const { live } = rank.device.memory();
    const left = Object.entries(live).filter(([, bytes]) => bytes !== 0);
    assert.deepEqual(left, []);
  };
}

export const CORE_CASES: readonly CoreCase[] = Object.entries({
  'training with clipped norms is that of one process': trainsAsOneProcess,
  'whole and local states go out and in': statesGoOutAndIn,
  'summonFullParams shows whole parameters and keeps what is written': summonShowsAndKeeps,
  'noSync adds up in f32, loses nothing, and ends with a throw': noSyncAddsUp,
  'saves come back, with other wrapping, and train on': savesComeBack,
  'experts keep their gradients, and come back from a save': expertsStayApart,
  'an overflow on one rank skips the step on all': overflowSkipsEverywhere,
}).map(([name, run]) => ({ name, run: leavingNothing(run) }));
