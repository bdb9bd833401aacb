// A job that goes on with other ranks: what is trained comes out of one wrapper and goes into
// another one, and the frozen base is cut anew.

import { createMemoryGroup, type ProcessGroup } from '@shardweave/collectives';
import {
  FsdpStateError,
  type FullyShardedDataParallel,
  setGradientDivideFactors,
  shardLayout,
} from '@shardweave/fsdp';
import {
  AdamW,
  applyLora,
  clipGradNorm,
  Gpt2,
  Linear,
  loadStateDict,
  type Module,
  quantizeBase,
  Sequential,
  type StateDict,
  stateDict,
} from '@shardweave/nn';
import { type Device, StateError, type Tensor } from '@shardweave/tensor-core';
import { expect, it } from 'vitest';
import { EncodedLinear, int8Weight } from '../../../tooling/test-kit/encoded-linear.ts';
import {
  freeze,
  groupCall,
  layer,
  onRanks,
  type Rank,
  refusal,
  Stack,
  TINY,
  textOf,
  trainOnce,
} from '../../../tooling/test-kit/index.ts';
import { wrapIn } from './support/sharding.js';

type Ranks = Pick<Rank, 'group'>;

/** Returns a GPT-2 with adapters; those of other seeds begin with other ones. */
function adapted({ device }: Pick<Rank, 'device'>, seed = 1): Gpt2 {
  const gpt2 = new Gpt2(device, TINY, { seed: 3 });
  applyLora(gpt2, { rank: 2, seed });
  return gpt2;
}

function shard(gpt2: Gpt2, { group }: Ranks): FullyShardedDataParallel {
  const options = {
    shardTrained: false,
    gradientGroups: 8,
    syncModuleStates: false,
    bucketCapMb: 0,
  };
  const wrap = wrapIn({ group }, options);
  for (const [name, block] of [...gpt2.children()].slice(1, -1)) {
    gpt2.replaceChild(name, wrap(block, name));
  }
  const model = wrap(gpt2);
  setGradientDivideFactors(model, { predivide: 1, postdivide: 1 });
  return model;
}

const adam = (gpt2: Gpt2) =>
  new AdamW(
    gpt2.parameters().filter(({ requiresGrad }) => requiresGrad),
    { lr: 0.01 },
  );

async function train(
  model: FullyShardedDataParallel,
  optimizer: AdamW,
  steps: readonly number[],
): Promise<void> {
  const { device } = model;
  for (const step of steps) {
    for (const group of model.groupCalls) {
      await groupCall(model, device, { step, group });
    }
    await device.scope(async () => {
      const { scale } = await clipGradNorm(model, 1);
      await optimizer.step({ gradScale: scale });
    });
    optimizer.zeroGrad();
  }
}

/** Returns all that a step changes, of a bare model. */
async function trainedIn(gpt2: Gpt2, optimizer: AdamW) {
  const weights = await stateDict(gpt2, { onlyTrained: true });
  return { weights, state: await optimizer.stateDict(gpt2.namedParameters()) };
}

type TrainedState = Awaited<ReturnType<typeof trainedIn>>;

/** Returns what `trainedIn` gives as texts, since typed arrays compare slowly. */
function textsOf({ weights, state }: TrainedState) {
  const states = [...state.state].map(([name, { step, tensors }]) => [name, step, textOf(tensors)]);
  return { weights: textOf(weights), states };
}

const NOTHING = { gathered: 0, gradient: 0, activation: 0, staging: 0 };

/** Expects a rank to hold its shards of the base and all of what is trained, and nothing else. */
function expectHeld(model: FullyShardedDataParallel, optimizer: AdamW): void {
  const units = model.instances().flatMap((instance) => instance.units);
  const bytesOf = (isTrained: boolean) =>
    units
      .filter((unit) => unit.isTrained === isTrained)
      .map(({ parameters }) => {
        const sizes = parameters.map(({ tensor }) => tensor.size);
        const ranks = isTrained ? 1 : model.processGroup.worldSize;
        return 4 * shardLayout(sizes, ranks).shardLength;
      })
      .reduce((all, bytes) => all + bytes);
  const [base, trained] = [bytesOf(false), bytesOf(true)];
  const { parameter, total } = model.device.memory().live;
  const state = optimizer.stateOf(units.find(({ isTrained }) => isTrained)!.flat);
  expect(parameter).toBe(base + trained);
  expect(total).toBe(base + trained + (state === undefined ? 0 : 2 * trained));
}

it('four ranks that lose two in a step and take in a third end as one rank alone does', async () => {
  const [undisturbed] = await onRanks(1, async (rank) => {
    const gpt2 = adapted(rank);
    const base = await stateDict(gpt2);
    const optimizer = adam(gpt2);
    const model = shard(gpt2, rank);
    await train(model, optimizer, [0, 1, 2]);
    expect(model.unwrap()).toBe(gpt2);
    return { base, end: textsOf(await trainedIn(gpt2, optimizer)) };
  });
  const base: StateDict = new Map(
    [...undisturbed!.base].filter(([name]) => !name.includes('lora_')),
  );
  const [pair, three] = [createMemoryGroup(2), createMemoryGroup(3)];
  let handOver!: (state: TrainedState) => void;
  const newest = new Promise<TrainedState>((resolve) => {
    handOver = resolve;
  });
  /** Trains a step in a new wrapper, takes it off again, and returns what the step left. */
  const trainOn = async (gpt2: Gpt2, optimizer: AdamW, group: ProcessGroup, step: number) => {
    const model = shard(gpt2, { group });
    await loadStateDict(model, base, { strict: false });
    await train(model, optimizer, [step]);
    expectHeld(model, optimizer);
    model.unwrap();
    const moments = optimizer.parameters().map((one) => optimizer.stateOf(one)?.tensors.size);
    expect(moments).toEqual(moments.map(() => 2)); // as whoever copies it finds it
    return trainedIn(gpt2, optimizer);
  };
  const ends = await onRanks(4, async (rank) => {
    const { device, group } = rank;
    let gpt2 = adapted(rank);
    let optimizer = adam(gpt2);
    const model = shard(gpt2, rank);
    await train(model, optimizer, [0]);
    expectHeld(model, optimizer);
    await groupCall(model, device, { step: 1, group: model.groupCalls[0] });
    if (rank.rank > 1) {
      group.abort('lost');
    }
    const call = groupCall(model, device, { step: 1, group: model.groupCalls[1] });
    await expect(call).rejects.toThrow('lost');
    model.unwrap();
    const { gathered, gradient, activation, staging } = device.memory().live;
    expect({ gathered, gradient, activation, staging }).toEqual(NOTHING);
    if (rank.rank > 1) {
      optimizer.dispose();
      gpt2.dispose();
      expect(device.memory().live.total).toBe(0);
    } else {
      handOver(await trainOn(gpt2, optimizer, pair[rank.rank]!, 1));
    }
    if (rank.rank === 2) {
      return undefined;
    }
    if (rank.rank === 3) {
      gpt2 = adapted(rank, 2);
      optimizer = adam(gpt2);
      const { weights, state } = await newest;
      await loadStateDict(gpt2, weights, { strict: false });
      await optimizer.loadStateDict(state, gpt2.namedParameters());
    }
    return textsOf(await trainOn(gpt2, optimizer, three[Math.min(rank.rank, 2)]!, 2));
  });
  for (const rank of [0, 1, 3]) {
    expect(ends[rank]).toEqual(undisturbed!.end);
  }
  for (const group of [...pair, ...three]) {
    await group.close();
  }
});

/** Two layers, the first of them frozen in an instance of its own inside another. */
function nested({ device, group }: Rank, options: Parameters<typeof wrapIn>[1] = {}) {
  const wrap = wrapIn({ group }, { shardTrained: false, ...options });
  const first = layer(device);
  for (const parameter of first.parameters()) {
    parameter.requiresGrad = false;
  }
  const bare = new Stack(device, [first, layer(device)]);
  bare.replaceChild('0', wrap(wrap(first)));
  return { model: wrap(bare), bare, first };
}

it.each([1, 2])(
  'unwrap over %i ranks puts modules back and frees all but what is trained',
  (ranks) =>
    onRanks(ranks, async (rank) => {
      const { device } = rank;
      const mixed = { mixedPrecision: true, computeDType: 'bf16' } as const;
      const { model, bare, first } = nested(rank, mixed);
      const before = await stateDict(model, { onlyTrained: true });
      await trainOnce(model, { first: rank.rank, count: 1 });
      expect(model.unwrap()).toBe(bare);
      expect([...bare.children().values()][0]).toBe(first);
      const trained = bare.parameters().filter(({ requiresGrad }) => requiresGrad);
      const bytes = trained.reduce((sum, { size }) => sum + 4 * size, 0);
      expect(device.memory().live.total).toBe(bytes);
      expect(textOf(await stateDict(bare, { onlyTrained: true }))).toEqual(textOf(before));
      const parameters: readonly [string, unknown, unknown, unknown][] = bare
        .namedParameters()
        .map(([name, { gradSink, piece, dtype }]) => [name, gradSink, piece, dtype]);
      for (const [name, ...left] of parameters) {
        expect(left, name).toEqual([undefined, undefined, 'f32']);
      }
      await expect(first.parameters()[0]!.toArray()).rejects.toThrow(/went with the shards/);
      model.dispose();
      expect(device.memory().live.total, 'the wrapper has nothing to free').toBe(0);
    }),
);

it('a base that was not loaded after wrapping again is missed by the first forward', () =>
  onRanks(2, async (rank) => {
    const { model, bare } = nested(rank);
    const base = await stateDict(model);
    await trainOnce(model, { first: 0, count: 1 });
    const again = wrapIn(rank, { shardTrained: false, syncModuleStates: false })(model.unwrap());
    const run = () => trainOnce(again, { first: 0, count: 1 });
    const refused = await run().catch((error: unknown) => error);
    expect(refused).toBeInstanceOf(StateError);
    expect((refused as Error).message).toMatch(
      /got none of '0.(weight|bias)', which had none when/,
    );
    await loadStateDict(again, base);
    await run();
    expect(textOf(await stateDict(again))).toEqual(textOf(base));
    expect(bare.parameters()).toHaveLength(4);
  }));

/** Two layers of which the first one's weight is frozen, in blocks. */
async function quantized(device: Device) {
  const linear = () => new Linear(device, { inFeatures: 256, outFeatures: 256, bias: false });
  const frozen = freeze(linear());
  await quantizeBase(frozen, { type: 'q4_K' });
  return new Sequential(device, [frozen, linear()]);
}

async function encoded(device: Device) {
  return new EncodedLinear(device, await int8Weight(1), { isEncoded: true });
}

it.each<[string, (device: Device) => Promise<Module<[Tensor], Tensor>>]>([
  ['blocks', quantized],
  ['bytes that the host decodes', encoded],
])('a base in %s is loaded again into other shards', async (_, build) => {
  let base: StateDict | undefined;
  const outputs = await onRanks(3, async ({ device, group, rank }) => {
    const pair = await group.split(Number(rank === 2));
    const bare = await build(device);
    const width = bare.parameters()[0]!.shape[0]!;
    const output = (model: Module<[Tensor], Tensor>) =>
      device.noGrad(() =>
        device.scope(async () => (await model.call(device.full([1, width], 0.5))).toArray()),
      );
    const first = wrapIn({ group }, { shardTrained: false })(bare);
    const expected = await output(first);
    base ??= await stateDict(first);
    await group.barrier();
    first.unwrap();
    const again = wrapIn({ group: pair }, { shardTrained: false, syncModuleStates: false })(bare);
    await loadStateDict(again, base);
    return { expected, found: await output(again) };
  });
  for (const { expected, found } of outputs) {
    expect(found).toEqual(expected);
  }
});

it('wrappers that were never called come off with all values', () =>
  onRanks(2, async (rank) => {
    const bare = new Stack(rank.device, [layer(rank.device)]);
    const before = textOf(await stateDict(bare));
    const [first] = bare.parameters();
    first!.requiresGrad = false;
    wrapIn(rank, { shardTrained: false })(bare).unwrap();
    expect(textOf(await stateDict(bare))).toEqual(before);
    bare.dispose();
    expect(rank.device.memory().live.total).toBe(0);
  }));

it('unwrap is refused on an inner instance, in a forward, and for trained shards', async () => {
  const inner = await refusal(
    FsdpStateError,
    async (rank) => {
      const { model } = nested(rank);
      await model.initialize();
      model.instances()[1]!.unwrap();
    },
    2,
  );
  expect(inner).toContain('expected the root instance');
  const shards = await refusal(
    FsdpStateError,
    async (rank) => {
      nested(rank, { shardTrained: true }).model.unwrap();
    },
    2,
  );
  expect(shards).toContain("got 'fsdp' over 2 ranks. Set shardTrained: false, or save");
  const during = await refusal(
    FsdpStateError,
    async (rank) => {
      const { model } = nested(rank);
      const run = trainOnce(model, { first: 0, count: 1 });
      try {
        model.unwrap();
      } finally {
        await run;
      }
    },
    2,
  );
  expect(during).toContain('unwrap: expected');
});
