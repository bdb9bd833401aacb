// Packed parameters: ranks add up the gradients of 16-bit computation, and each steps f32 masters.

import type { DdpOptions } from '@shardweave/ddp-buckets';
import type { FsdpOptions } from '@shardweave/fsdp';
import {
  AdamW,
  Gpt2,
  type GradScaler,
  type Module,
  packParameters,
  Sgd,
  stateDict,
} from '@shardweave/nn';
import type { Device } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  Bag,
  forwardBackward,
  makeOptimizer,
  onRanks,
  pull,
  type Rank,
  SMALL_BUCKETS,
  shardedBlocks,
  TINY,
  tinyGpt2,
  wrap,
} from './support/ranks.js';

const BATCH = 6;
const SPEC = { a: 3, b: 2, c: 200 };

/** A model whose gradients are known, packed to compute in bf16. */
function packedBag({ device }: Pick<Rank, 'device'>): Bag {
  const bag = new Bag(device, SPEC);
  packParameters(bag, { computeDType: 'bf16' });
  return bag;
}

/** The first element of each parameter's gradient in its flat; undefined where it has none. */
async function gradientsOf(model: Module): Promise<Record<string, number | undefined>> {
  const found: Record<string, number | undefined> = {};
  for (const [name, leaf] of model.namedParameters()) {
    const { flat, start } = leaf.piece!;
    const has = leaf.gradSink!.hasGradient!(leaf);
    found[name] = has ? (await flat.grad!.toArray())[start] : undefined;
  }
  return found;
}

async function textOf(state: ReadonlyMap<string, { readonly data: Uint8Array }>) {
  return [...state].map(([name, { data }]) => `${name} ${Buffer.from(data).toString('hex')}`);
}

interface Program {
  readonly dtype: 'bf16' | 'f16';
  readonly isReducedInF32?: boolean;
  /** How many backwards each step has, and whether all but the last wait in noSync. */
  readonly microSteps?: number;
  readonly isWaiting?: boolean;
}

/** Trains three steps; the results are those of rank 0, and the bytes those of the last step. */
async function trained(
  worldSize: number,
  program: Program,
  wrapped: (rank: Rank) => Promise<{
    readonly model: Module & { noSync<T>(body: () => Promise<T>): Promise<T> };
    state(): Promise<string[]>;
  }>,
) {
  const { microSteps = 1, isWaiting = false } = program;
  const results = await onRanks(worldSize, async (rank) => {
    const { model, state } = await wrapped(rank);
    const optimizer = makeOptimizer(model, 'adamw');
    const losses: number[] = [];
    let bytes = 0;
    for (let step = 0; step < 3; step++) {
      const before = rank.group.stats().bytesSent;
      for (let micro = 0; micro < microSteps; micro++) {
        const count = BATCH / worldSize;
        const rows = { batch: BATCH, first: rank.rank * count, count };
        const run = () => forwardBackward(rank.device, model, step * microSteps + micro, rows);
        const isLast = micro === microSteps - 1;
        losses.push(await (isWaiting && !isLast ? model.noSync(run) : run()));
      }
      bytes = rank.group.stats().bytesSent - before;
      await optimizer.step();
      optimizer.zeroGrad();
    }
    return { losses, bytes, weights: await state() };
  });
  expect(new Set(results.map(({ weights }) => weights.join())).size).toBe(1);
  return results[0]!;
}

/** Whole 16-bit replicas beside f32 masters, as fsdp has them. */
function replicated({ dtype, isReducedInF32 = false }: Program, buckets: Partial<FsdpOptions>) {
  return async ({ device, group }: Rank) => {
    const gpt = tinyGpt2(device);
    const options: FsdpOptions = {
      processGroup: await group.split(group.rank),
      replicateGroup: group,
      mixedPrecision: true,
      computeDType: dtype,
      fp32ReduceScatter: isReducedInF32,
      gradientPredivideFactor: 1,
      ...buckets,
    };
    const model = shardedBlocks(gpt, options);
    return { model, state: async () => textOf(await stateDict(model)) };
  };
}

function packed({ dtype, isReducedInF32 = false }: Program, options: Partial<DdpOptions>) {
  return async (rank: Rank) => {
    const gpt = tinyGpt2(rank.device);
    packParameters(gpt, { computeDType: dtype });
    const model = wrap(gpt, rank, { allreduceAlwaysFp32: isReducedInF32, ...options });
    return { model, state: async () => textOf(await stateDict(model)) };
  };
}

describe('a GPT-2 with a tied table has the bits of fsdp over groups of one', () => {
  it.each<[string, number, Program]>([
    ['bf16', 2, { dtype: 'bf16' }],
    ['f16 on 3 ranks', 3, { dtype: 'f16' }],
    ['bf16, sums of each micro-step', 2, { dtype: 'bf16', microSteps: 3 }],
    ['bf16, micro-steps in noSync', 3, { dtype: 'bf16', microSteps: 3, isWaiting: true }],
    ['bf16 reduced in f32', 2, { dtype: 'bf16', isReducedInF32: true }],
    ['f16, both', 2, { dtype: 'f16', isReducedInF32: true, microSteps: 2, isWaiting: true }],
  ])('%s', async (_, worldSize, program) => {
    const expected = await trained(worldSize, program, replicated(program, { bucketCapMb: 0 }));
    const small = await trained(worldSize, program, packed(program, SMALL_BUCKETS));
    expect(small.losses).toEqual(expected.losses);
    expect(small.weights).toEqual(expected.weights);
    expect(small.bytes).toBe(expected.bytes);
  });
});

it('packed f32 parameters have the bits of plain ones', async () => {
  const run = (isPacked: boolean) =>
    onRanks(2, async (rank) => {
      const gpt = tinyGpt2(rank.device);
      if (isPacked) {
        packParameters(gpt);
      }
      const model = wrap(gpt, rank);
      const optimizer = makeOptimizer(model, 'adamw');
      const rows = { batch: BATCH, first: rank.rank * 3, count: 3 };
      for (let step = 0; step < 3; step++) {
        await model.noSync(() => forwardBackward(rank.device, model, 9 + step, rows));
        await forwardBackward(rank.device, model, step, rows);
        await optimizer.step();
        optimizer.zeroGrad();
      }
      return textOf(await stateDict(model));
    });
  expect(await run(true)).toEqual(await run(false));
});

describe('gradients', () => {
  it('are in the flat, divided in f32 without a second rounding', async () => {
    await onRanks(3, async (rank) => {
      const model = wrap(packedBag(rank), rank);
      await pull(model, 1 + rank.rank);
      const third = (sum: number) => Math.fround(sum * Math.fround(1 / 3));
      // Each factor is exact in bf16, and so are the sums.
      expect(await gradientsOf(model)).toEqual({ a: third(6), b: third(12), c: third(18) });
      await pull(model, rank.rank === 0 ? 1 : 0);
      const [a] = [third(6) + third(1)].map(Math.fround);
      expect((await gradientsOf(model)).a).toBe(a);
      expect(model.parameters().map(({ grad }) => grad)).toEqual([undefined, undefined, undefined]);
    });
  });

  it('add up in f32 in noSync, and are shown nowhere until they are reduced', async () => {
    await onRanks(2, async (rank) => {
      const model = wrap(packedBag(rank), rank, { gradientAverage: false });
      await model.initialize();
      await model.noSync(async () => {
        await pull(model, 256);
        await pull(model, 1); // 257 is no bf16
      });
      expect(await gradientsOf(model)).toEqual({ a: undefined, b: undefined, c: undefined });
      expect(model.parameters().map(({ grad }) => grad)).toEqual([undefined, undefined, undefined]);
      await pull(model, -256);
      expect(await gradientsOf(model)).toEqual({ a: 2, b: 4, c: 6 });
    });
  });

  it('stay as they are where no rank uses a parameter, and each is cleared by itself', async () => {
    await onRanks(2, async (rank) => {
      const model = wrap(packedBag(rank), rank, {
        findUnusedParameters: true,
        gradientAverage: false,
      });
      await pull(model, 1, ['a', 'c']);
      expect(await gradientsOf(model)).toEqual({ a: 2, b: undefined, c: 6 });
      await pull(model, 1, ['b']);
      expect(await gradientsOf(model)).toEqual({ a: 2, b: 4, c: 6 });
      const [a, b, c] = model.parameters();
      new Sgd([a!, b!]).zeroGrad();
      expect(await gradientsOf(model)).toEqual({ a: undefined, b: undefined, c: 6 });
      new Sgd([c!]).zeroGrad();
      expect(c!.piece!.flat.grad).toBeUndefined();
    });
  });

  it('go to the pack again when the wrapper is disposed', async () => {
    await onRanks(1, async (rank) => {
      const bag = packedBag(rank);
      const sinks = bag.parameters().map(({ gradSink }) => gradSink);
      const model = wrap(bag, rank);
      await pull(model, 1);
      model.zeroGrad();
      (model as unknown as { releaseOwned(): void }).releaseOwned();
      expect(bag.parameters().map(({ gradSink }) => gradSink)).toEqual(sinks);
      await pull(bag, 1);
      expect(await gradientsOf(bag)).toEqual({ a: 1, b: 2, c: 3 });
    });
  });

  it('are forgotten by the hook where no step has used them', async () => {
    await onRanks(2, async (rank) => {
      const forgotten: (readonly string[])[] = [];
      const model = wrap(packedBag(rank), rank, {
        communicationHook: {
          reduce: async ({ bytes, dtype, group, tag, identity }) => {
            await group.allReduce(bytes, bytes, { dtype, op: 'sum', tag, identity });
          },
          name: 'a sum',
          isSerial: false,
          forget: (paths) => void forgotten.push(paths),
        },
      });
      const optimizer = new Sgd(model.parameters(), { lr: 0.1 });
      await pull(model, 1);
      await optimizer.step();
      optimizer.zeroGrad();
      expect(forgotten).toEqual([]);
      await pull(model, 1);
      optimizer.zeroGrad();
      expect(forgotten).toEqual([['a', 'b', 'c']]);
    });
  });
});

describe('masters', () => {
  const differing = (device: Device, rank: number) => {
    const gpt = new Gpt2(device, TINY, { seed: rank });
    packParameters(gpt, { computeDType: 'bf16' });
    return gpt;
  };

  it('are those of rank 0 in all bits, at the start and when they are asked for', async () => {
    const texts = await onRanks(2, async (rank) => {
      const gpt = differing(rank.device, rank.rank);
      const before = await textOf(await stateDict(gpt));
      const model = wrap(gpt, rank);
      const logits = async () => {
        const ids = Int32Array.of(1, 2, 3, 4);
        return rank.device.noGrad(() =>
          rank.device.scope(async () => [
            ...(await (await model.call(rank.device.tensor(ids, [1, 4]))).toArray()),
          ]),
        );
      };
      const first = await logits();
      const started = await textOf(await stateDict(gpt));
      const optimizer = new Sgd(model.parameters(), { lr: 0.1 * (1 + rank.rank) });
      await forwardBackward(rank.device, model, 1, { batch: 2, first: rank.rank, count: 1 });
      await optimizer.step();
      await model.syncParameters({ onlyTrained: true });
      return {
        before,
        started,
        first,
        synced: await textOf(await stateDict(gpt)),
        last: await logits(),
      };
    });
    const [own, other] = texts;
    expect(own!.started).toEqual(own!.before);
    expect(other!.started).toEqual(own!.before);
    expect(other!.first).toEqual(own!.first);
    expect(other!.synced).toEqual(own!.synced);
    expect(other!.synced).not.toEqual(own!.started);
    expect(other!.last).toEqual(own!.last);
  });

  it('follow with their moments those of a rank that stepped last, in join', async () => {
    const results = await onRanks(2, async (rank) => {
      const model = wrap(packedBag(rank), rank);
      const optimizer = new AdamW(model.parameters(), { lr: 0.1 });
      const step = async (factor: number) => {
        await pull(model, factor);
        await optimizer.step();
        optimizer.zeroGrad();
      };
      await model.join(
        async () => {
          for (let i = 0; i < 1 + 2 * rank.rank; i++) {
            await step(1 + i + rank.rank);
          }
        },
        { optimizers: [optimizer], scalers: [] as GradScaler[] },
      );
      await step(3);
      const { state } = await optimizer.stateDict(model.namedParameters());
      return {
        weights: await textOf(await stateDict(model)),
        state: [...state].map(([name, { step: count, tensors }]) => [name, count, [...tensors]]),
      };
    });
    expect(results[0]).toEqual(results[1]);
    expect(results[0]!.state.map(([, count]) => count)).toEqual([4, 4, 4]);
  });

  it('are compared over ranks, and another dtype is told by name', async () => {
    await onRanks(2, async (rank) => {
      const bag = new Bag(rank.device, SPEC);
      if (rank.rank === 0) {
        packParameters(bag, { computeDType: 'bf16' });
      } else {
        bag.to('bf16');
      }
      await expect(wrap(bag, rank).initialize()).rejects.toThrow(/a bf16 of f32 \[3\]/);
    });
  });
});
