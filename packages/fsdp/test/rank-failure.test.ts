// When a rank throws, the others learn its number and the cause at once, not by a time-out (ten
// minutes here). Ranks that all fail alike go on.

import { CollectiveAbortedError, PeerFailedError } from '@shardweave/collectives';
import type { FullyShardedDataParallel } from '@shardweave/fsdp';
import { gatherFullOptimStateDict, summonFullParams } from '@shardweave/fsdp/fairscale';
import { GradScaler, gradNorm, Module, Sgd, stateDict } from '@shardweave/nn';
import type { Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  inputs,
  layer,
  lossOf,
  onRanks,
  type Rank,
  rejectionOf,
  rowsOf,
  Stack,
  trainOnce,
  weightsOf,
} from '../../../tooling/test-kit/index.ts';
import { failingStore } from './support/failing-store.js';
import { storedTraining } from './support/offload-training.js';
import { wrapIn } from './support/sharding.js';

/** Options that end a test which would otherwise wait for the time-out. */
const IN_TIME = { timeout: 8000 };

/** This module passes its input on, and fails on demand. */
class Fragile extends Module<[x: Tensor], Tensor> {
  fails: (() => string | undefined) | undefined;

  async forward(x: Tensor): Promise<Tensor> {
    const text = this.fails?.();
    if (text !== undefined) {
      throw new TypeError(text);
    }
    return x;
  }
}

interface Made {
  readonly model: FullyShardedDataParallel;
  readonly fragile: Fragile;
}

/** Returns a model with a wrapped layer on both sides of the one that may fail. */
function made({ device, group }: Rank, options: object = {}): Made {
  const wrap = wrapIn({ group }, options);
  const fragile = new Fragile(device);
  const layers = [
    wrap(layer(device), 'first'),
    fragile,
    wrap(layer(device), 'last'),
    layer(device),
  ];
  return { fragile, model: wrap(new Stack(device, layers), 'root') };
}

const PLACES: Record<string, (made: Made, rank: Rank, text: string) => void> = {
  'in forward': ({ fragile }, _, text) => {
    fragile.fails = () => text;
  },
  'in a hook before forward': ({ model }, _, text) => {
    model.aroundForward({
      before: () => {
        throw new TypeError(text);
      },
    });
  },
  'in a hook after forward': ({ model }, _, text) => {
    model.aroundForward({
      after: () => {
        throw new TypeError(text);
      },
    });
  },
  'in a hook of an inner instance': ({ model }, _, text) => {
    model.instances()[1]!.aroundForward({
      after: () => {
        throw new TypeError(text);
      },
    });
  },
  'in backward': ({ model }, { device }, text) => {
    device.autograd.onGradientFinal(model.instances()[2]!.parameters()[0]!, () => {
      throw new TypeError(text);
    });
  },
};

describe.each([{}, { reshardAfterForward: false }, { bucketCapMb: 0 }])('%j', (options) => {
  it.each(Object.keys(PLACES))('one rank throws %s', IN_TIME, (place) =>
    onRanks(3, async (rank) => {
      const all = made(rank, options);
      await trainOnce(all.model, rowsOf(rank));
      if (rank.rank === 1) {
        PLACES[place]!(all, rank, "a row of 7 is 'too long'");
      }
      const error = await rejectionOf(trainOnce(all.model, rowsOf(rank), 1));
      if (rank.rank === 1) {
        expect(error).toMatchObject({ name: 'TypeError', message: "a row of 7 is 'too long'" });
      } else {
        expect(error).toBeInstanceOf(PeerFailedError);
        expect(error).toMatchObject({ rank: 1, reason: "TypeError: a row of 7 is 'too long'" });
        expect((error as Error).message).toMatch(
          /^rank [02]\/3 (forward|backward): .*rank 1 failed in/,
        );
      }
      all.model.assertState('idle');
      expect(rank.device.memory().live).toMatchObject({ gathered: 0, activation: 0, staging: 0 });
    }),
  );

  it.each(Object.keys(PLACES).filter((place) => !place.includes('hook')))(
    'all ranks throw %s, each in words of its own, and train on',
    IN_TIME,
    async (place) => {
      const weights = await onRanks(2, async (rank) => {
        const all = made(rank, options);
        const optimizer = new Sgd(all.model.parameters(), { lr: 0.5 });
        await trainOnce(all.model, rowsOf(rank));
        await optimizer.step();
        optimizer.zeroGrad();
        let isFailing = true;
        const text = `rank ${rank.rank} has ${rank.rank + 11} rows`;
        all.fragile.fails = () => (isFailing && place === 'in forward' ? text : undefined);
        const stop = rank.device.autograd.onGradientFinal(all.model.parameters()[0]!, () => {
          if (isFailing && place === 'in backward') {
            throw new TypeError(text);
          }
        });
        await expect(trainOnce(all.model, rowsOf(rank), 1)).rejects.toThrow(text);
        isFailing = false;
        stop();
        optimizer.zeroGrad();
        await trainOnce(all.model, rowsOf(rank), 1);
        await optimizer.step();
        return weightsOf(all.model);
      });
      expect(weights[0]).toEqual(weights[1]);
    },
  );
});

/** Runs a step that may fail in its loss, before backward comes to the model. */
function stepOf(model: FullyShardedDataParallel, rank: Rank, text?: string): Promise<void> {
  const { device } = rank;
  return device.scope(async () => {
    const loss = lossOf((await model.call(inputs(device, rowsOf(rank)))) as Tensor);
    device.beforeGradientOf(loss, () => {
      if (text !== undefined) {
        throw new TypeError(text);
      }
    });
    await loss.backward();
  });
}

async function expectRankFailed(call: Promise<unknown>, rank: Rank): Promise<void> {
  const error = await rejectionOf(call);
  if (rank.rank === 1) {
    expect(error).toMatchObject({ name: 'TypeError', message: 'a bad row' });
  } else {
    expect(error).toBeInstanceOf(PeerFailedError);
    expect(error).toMatchObject({ rank: 1, reason: 'TypeError: a bad row' });
  }
}

describe.each([{}, { reshardAfterForward: false }])('%j', (options) => {
  it('one rank throws in its loss', IN_TIME, () =>
    onRanks(2, async (rank) => {
      const { model } = made(rank, options);
      await stepOf(model, rank);
      await expectRankFailed(stepOf(model, rank, rank.rank === 1 ? 'a bad row' : undefined), rank);
    }),
  );

  it.each([...Object.keys(PLACES), 'in its loss'])(
    'one rank throws %s in a later micro-batch of noSync',
    IN_TIME,
    (place) =>
      onRanks(2, async (rank) => {
        const all = made(rank, options);
        await all.model.noSync(() => stepOf(all.model, rank));
        const isBad = rank.rank === 1;
        if (isBad) {
          PLACES[place]?.(all, rank, 'a bad row');
        }
        const text = isBad && place === 'in its loss' ? 'a bad row' : undefined;
        const both = all.model
          .noSync(() => stepOf(all.model, rank, text))
          .then(() => stepOf(all.model, rank));
        await expectRankFailed(both, rank);
      }),
  );

  it('all ranks throw in their loss, and train on', IN_TIME, () =>
    onRanks(2, async (rank) => {
      const { model } = made(rank, options);
      for (const isLocal of [true, false]) {
        const bad = () => stepOf(model, rank, `rank ${rank.rank} has a bad row`);
        await expect(isLocal ? model.noSync(bad) : bad()).rejects.toThrow('a bad row');
        await stepOf(model, rank);
        model.zeroGrad();
      }
    }),
  );
});

it('a forward that fails before its first gather, recorded or not, is told', IN_TIME, async () => {
  for (const isRecorded of [true, false]) {
    await onRanks(2, async (rank) => {
      const { device, group } = rank;
      const fragile = new Fragile(device);
      const wrap = wrapIn({ group });
      // The root has no parameters of its own, so it gathers nothing before the failure.
      const model = wrap(new Stack(device, [fragile, wrap(layer(device))]));
      await stepOf(model, rank);
      fragile.fails = () => (rank.rank === 1 ? 'a bad row' : undefined);
      const run = () => stepOf(model, rank);
      await expectRankFailed(isRecorded ? run() : device.noGrad(() => evaluate()), rank);

      async function evaluate(): Promise<void> {
        await device.scope(async () => {
          await model.call(inputs(device, rowsOf(rank)));
        });
      }
    });
  }
});

describe('a store that fails on one rank', () => {
  /** Returns a store that fails from the moment when the test says so. */
  function fragileStore(rank: Rank, part: string, operation: 'read' | 'write' = 'read') {
    const state = { isFailing: false };
    const store = failingStore('IO', (what, key) => {
      return state.isFailing && rank.rank === 1 && what === operation && key.endsWith(part);
    });
    return { state, store };
  }

  async function expectTold(call: Promise<unknown>, rank: Rank, operation: RegExp): Promise<void> {
    const error = await rejectionOf(call);
    if (rank.rank === 1) {
      expect(error).toMatchObject({ code: 'IO' });
    } else {
      expect(error).toBeInstanceOf(PeerFailedError);
      expect(error).toMatchObject({ rank: 1, reason: expect.stringContaining('IO: no read') });
      expect((error as PeerFailedError).operation).toMatch(operation);
    }
  }

  it.each(['root/parameter', 'block 2/parameter'])('forward reads %s', IN_TIME, (part) =>
    onRanks(2, async (rank) => {
      const { state, store } = fragileStore(rank, part);
      const { step } = storedTraining(rank, store);
      await step(0);
      state.isFailing = true;
      await expectTold(step(1), rank, /gather of (root|block 2)/);
    }),
  );

  it('backward reads a shard', IN_TIME, () =>
    onRanks(2, async (rank) => {
      const { state, store } = fragileStore(rank, 'block 1/parameter');
      const { model, step, backward } = storedTraining(rank, store, {
        fsdp: { gatherCapBytes: 0 },
      });
      await step(0);
      model.aroundForward({
        after: () => {
          state.isFailing = true;
        },
      });
      await expectTold(backward(1), rank, /gather of block 1/);
    }),
  );

  it.each([
    ['gradNorm', 'gradient'],
    ['unscale', 'gradient'],
    ['stateDict', 'parameter'],
    ['summonFullParams', 'parameter'],
    ['gatherFullOptimStateDict', 'expAvg'],
  ])('%s reads its %s', IN_TIME, (name, part) =>
    onRanks(2, async (rank) => {
      const { state, store } = fragileStore(rank, `block 1/${part}`);
      const { model, optimizer, step, backward } = storedTraining(rank, store);
      await step(0);
      if (part === 'gradient') {
        await backward(1);
      }
      const calls: Record<string, () => Promise<unknown>> = {
        gradNorm: () => gradNorm(model),
        unscale: () => new GradScaler(model).unscale(optimizer),
        stateDict: () => stateDict(model),
        summonFullParams: () => summonFullParams(model, () => undefined),
        gatherFullOptimStateDict: () => gatherFullOptimStateDict(model, optimizer),
      };
      state.isFailing = true;
      await expectTold(calls[name]!(), rank, new RegExp(name));
    }),
  );

  it('initial values cannot be written', IN_TIME, async () => {
    for (const failing of [0, 1]) {
      await onRanks(2, async (rank) => {
        const store = failingStore('FULL', (operation) => {
          return operation === 'write' && rank.rank === failing;
        });
        const { model } = storedTraining(rank, store);
        const error = await rejectionOf(model.initialize());
        if (rank.rank === failing) {
          expect(error).toMatchObject({ code: 'FULL' });
        } else {
          expect(error).toBeInstanceOf(CollectiveAbortedError);
          expect(error).toMatchObject({
            originRank: failing,
            reason: expect.stringContaining('failed in initialize: no write'),
          });
        }
      });
    }
  });
});
