// An optimizer's step, a reduction, or kernels that still read what the host has freed may be late.
// The results equal those without delays, bit for bit.

import type { ProcessGroup } from '@shardweave/collectives';
import { type FsdpOptions, FullyShardedDataParallel } from '@shardweave/fsdp';
import { AdamW, checkpoint, type Module, Sgd, stateDict } from '@shardweave/nn';
import { type Backend, Device, type Tensor, tanh } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';
import {
  expectClose,
  inputs,
  layer,
  lossOf,
  onRanks,
  type Rank,
  rowsOf,
  Stack,
  stepped,
  textOf,
  trainOnce,
  weightsOf,
} from '../../../tooling/test-kit/index.ts';
import { type LateBackendOptions, lateBackend } from './support/late-backend.js';
import { wrapIn } from './support/sharding.js';

const STEPS = 3;

/** Returns the rank on a device that runs kernels of the given kinds late. */
function lateRank(
  rank: Rank,
  numTurns: number,
  { slow, ...options }: Omit<LateBackendOptions, 'slow' | 'numTurns'> & { readonly slow: RegExp },
): Rank {
  const backend: Backend = lateBackend(rank.device.backend, {
    ...options,
    numTurns,
    slow: (kernel) => slow.test(kernel),
  });
  return { ...rank, device: new Device(backend, { seed: 7 }) };
}

/** Returns losses and weights of a few AdamW steps of two units and a root. */
async function trained({ device, group, rank }: Rank, fsdp: Partial<FsdpOptions> = {}) {
  const wrap = wrapIn({ group }, fsdp);
  const model = wrap(new Stack(device, [wrap(layer(device)), wrap(layer(device)), layer(device)]));
  const optimizer = new AdamW(model.parameters(), { lr: 0.05 });
  const losses = await stepped(optimizer, STEPS, (step) =>
    trainOnce(model, { first: rank, count: 1 }, step),
  );
  return { losses, weights: textOf(await stateDict(model)) };
}

describe.each([
  [{}, true],
  [{}, false],
  [{ mixedPrecision: true, computeDType: 'bf16' }, true],
  [{ reshardAfterForward: false }, true],
  [{ moveParamsToCpu: true }, true],
] as const)('with %j, and memory that the host can use: %j', (fsdp, isHostMemory) => {
  it('gathers wait for an optimizer step that takes long on the device', async () => {
    const plain = await onRanks(2, (rank) => trained(rank, fsdp));
    const late = await onRanks(2, async (rank) => {
      const isStep = /adam/i;
      let numStepped = 0;
      const device = lateRank(rank, 20, {
        slow: isStep,
        isHostMemory,
        onRun: (kernel) => {
          if (isStep.test(kernel)) {
            numStepped += 1;
          }
        },
      });
      /**
       * The numbers of flat parameters that had been stepped on the device when a gather started.
       */
      const atGather = new Set<number>();
      const { group } = rank;
      const allGather = group.allGather.bind(group);
      group.allGather = (...call) => {
        atGather.add(numStepped);
        return allGather(...call);
      };
      const result = await trained(device, fsdp);
      // There are three flat parameters: no gather starts while only some of them are stepped.
      expect([...atGather]).toEqual([0, 3, 6, 9]);
      return result;
    });
    expect(late).toEqual(plain);
  });
});

describe.each([0, 25])('bucketCapMb %d', (bucketCapMb) => {
  it('the end of backward waits for reductions that are 250 ms late', async () => {
    const options = { bucketCapMb };
    const plain = await onRanks(2, (rank) => trained(rank, options));
    const events: string[] = [];
    const late = await onRanks(2, async (rank) => {
      const reduceGroup = lateReductions(await rank.group.split(0), () => {
        if (rank.rank === 0) {
          events.push('reduced');
        }
      });
      const { device, group } = rank;
      const model = wrapIn(
        { group },
        { processGroupReduceScatter: reduceGroup, ...options },
      )(layer(device));
      await trainOnce(model, rowsOf(rank));
      if (rank.rank === 0) {
        events.push('backward ended');
      }
      return trained(rank, { ...options, processGroupReduceScatter: reduceGroup });
    });
    expect(events.slice(0, 2)).toEqual(['reduced', 'backward ended']);
    expect(late).toEqual(plain);
  });
});

describe.each([
  ['steps', /adam/i],
  ['products', /matmul/i],
] as const)('late %s on a device whose memory the host uses', (_, slow) => {
  it.each<Partial<FsdpOptions>>([
    { bucketCapMb: 0 },
    { bucketCapMb: 0, gatherCapBytes: 1 },
    { bucketCapMb: 0, mixedPrecision: true, computeDType: 'bf16' },
  ])('are waited for by gathers and reductions, with %j', async (options) => {
    const run = (late: Pick<LateBackendOptions, 'isSettledAtOnce'>) =>
      onRanks(2, (rank) => trained(lateRank(rank, 10, { slow, ...late }), options));
    const plain = await onRanks(2, (rank) => trained(rank, options));
    expect(await run({})).toEqual(plain);
    // A device of which nobody knows what it has yet to do trains to other weights.
    expect(await run({ isSettledAtOnce: true })).not.toEqual(plain);
  });
});

/** Returns a group whose reduce-scatters give no result until they are 250 ms old. */
function lateReductions(group: ProcessGroup, onDone: () => void): ProcessGroup {
  const reduceScatter = group.reduceScatter.bind(group);
  group.reduceScatter = async (input, output, options) => {
    const result = new Uint8Array(output.byteLength);
    await reduceScatter(input, result, options);
    await new Promise((resolve) => setTimeout(resolve, 250));
    output.set(result);
    onDone();
  };
  return group;
}

describe.each([false, true])('checkpoint %s', (isCheckpointing) => {
  it('a mixture of experts equals gradients reduced by hand', async () => {
    const perRank = await onRanks(2, async (rank) => {
      const byHand = await mixture(rank, { isSharded: false, isCheckpointing });
      const again = { ...rank, device: new Device(rank.device.backend, { seed: 7 }) };
      const sharded = await mixture(again, { isSharded: true, isCheckpointing });
      expectClose(sharded, byHand, 5e-7);
      return sharded;
    });
    const [first, second] = perRank as [Map<string, Float32Array>, Map<string, Float32Array>];
    expect(first.get('0.weight')).toEqual(second.get('0.weight'));
    expect(first.get('1.weight')).not.toEqual(second.get('1.weight'));
  });

  it('a gather refills memory that late kernels still read, and nothing changes', async () => {
    const options = { isSharded: true, isCheckpointing };
    const plain = await onRanks(2, (rank) => mixture(rank, options));
    const late = await onRanks(2, async (rank) => {
      let numOvertaking = 0;
      const onWrite = (numWaiting: number) => {
        if (numWaiting > 0) {
          numOvertaking += 1;
        }
      };
      const late = { slow: /matmul/i, isHostMemory: false };
      const weights = await mixture(lateRank(rank, 3, { ...late, onWrite }), options);
      expect(numOvertaking).toBeGreaterThan(0);
      return weights;
    });
    expect(late).toEqual(plain);
    // This is the control: a device whose writes don't wait their turn trains to other weights.
    const broken = await onRanks(2, (rank) =>
      mixture(
        lateRank(rank, 3, { slow: /matmul/i, isHostMemory: false, isWritingAtOnce: true }),
        options,
      ),
    );
    expect(broken).not.toEqual(plain);
  });
});

/**
 * Returns weights after some steps of a shared layer, an expert that each rank has for itself, and
 * another shared layer.
 */
async function mixture(
  rank: Rank,
  options: { readonly isSharded: boolean; readonly isCheckpointing: boolean },
): Promise<Map<string, Float32Array>> {
  const { device, group } = rank;
  const alone = await group.split(rank.rank);
  const shared = [layer(device), layer(device)] as const;
  const bare = layer(device);
  const inner = options.isCheckpointing ? checkpoint(bare) : bare;
  const expert = options.isSharded
    ? new FullyShardedDataParallel(inner, { processGroup: alone, name: 'expert' })
    : inner;
  // Both are instances of their own: the second one's parameters take the memory that the first
  // one's have left.
  const wrapped = shared.map((module) =>
    options.isSharded ? new FullyShardedDataParallel(module, { processGroup: group }) : module,
  );
  const stack = new Stack(device, [wrapped[0]!, expert, wrapped[1]!]);
  const model: Module = options.isSharded
    ? new FullyShardedDataParallel(stack, { processGroup: group, name: 'root' })
    : stack;
  const optimizer = new Sgd(model.parameters(), { lr: 0.5 });
  for (let step = 0; step < STEPS; step++) {
    await device.scope(async () => {
      const x = inputs(device, { first: 6 * rank.rank, count: 6 }, step);
      await lossOf(tanh((await model.call(x)) as Tensor)).backward();
    });
    if (!options.isSharded) {
      for (const tensor of shared.flatMap((module) => module.parameters())) {
        const bytes = await tensor.grad!.toBytes();
        await group.allReduce(bytes, bytes, { dtype: 'f32', op: 'mean' });
        tensor.grad!.storage.write(bytes);
      }
    }
    await optimizer.step();
    optimizer.zeroGrad();
  }
  return weightsOf(model);
}

it('a late device gives the results of any other device', async () => {
  const inner = createReferenceBackend();
  const device = new Device(lateBackend(inner, { numTurns: 5, slow: () => true }));
  const sum = await device.scope(() => lossOf(device.full([2, 2], 3)).item());
  expect(sum).toBe(9);
  await inner.dispose();
});
