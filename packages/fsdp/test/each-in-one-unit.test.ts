// Each parameter is in exactly one flat parameter, also after modules were added or removed.
// Otherwise an error names it. Further tests check what an instance returns that uses another's
// parameter.

import { FsdpConfigError, FullyShardedDataParallel } from '@shardweave/fsdp';
import {
  apply,
  gatherFullOptimStateDict,
  loadLocalStateDict,
  localMetadataDict,
  localStateDict,
  summonFullParams,
} from '@shardweave/fsdp/fairscale';
import { Linear, loadStateDict, Module, Sgd, saveCheckpoint, stateDict } from '@shardweave/nn';
import { type Device, matmul, type Tensor, transpose } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  layer,
  onRanks,
  type Rank,
  rejectionOf,
  rowsOf,
  Stack,
  trainOnce,
  weightsOf,
} from '../../../tooling/test-kit/index.ts';
import { place } from './support/saved-models.js';
import { expectEqualTraining, expectIdle, wrapIn } from './support/sharding.js';

/** Returns a wrapped body and a bare head below a root. */
function bodyAndHead(rank: Rank): { model: FullyShardedDataParallel; inner: Stack } {
  const { device } = rank;
  const inner = new Stack(device, [wrapIn(rank)(layer(device), 'body'), layer(device)]);
  return { inner, model: wrapIn(rank)(inner, 'root') };
}

async function messageOf(call: Promise<unknown>): Promise<string> {
  const error = await rejectionOf(call);
  expect(error).toBeInstanceOf(FsdpConfigError);
  return (error as Error).message;
}

it('a forward that was refused may be made again', () =>
  onRanks(2, async (rank) => {
    const { inner, model } = bodyAndHead(rank);
    const head = inner.children().get('1')!;
    inner.replaceChild('1', layer(rank.device));
    await messageOf(trainOnce(model, rowsOf(rank)));
    inner.replaceChild('1', head);
    expect(model.trainingState).toBe('idle');
    await trainOnce(model, rowsOf(rank));
  }));

describe('a bare module put in after wrapping is named', () => {
  const calls: Record<string, (model: FullyShardedDataParallel, rank: Rank) => Promise<unknown>> = {
    initialize: (model) => model.initialize(),
    'a forward': (model, rank) => trainOnce(model, rowsOf(rank)),
    stateDict: (model) => stateDict(model),
    loadStateDict: (model) => loadStateDict(model, new Map(), { strict: false }),
    localStateDict: (model) => localStateDict(model),
    saveCheckpoint: (model) => saveCheckpoint(model, place()),
    gatherFullOptimStateDict: (model) =>
      gatherFullOptimStateDict(model, new Sgd(model.parameters(), { lr: 1 })),
    summonFullParams: (model) => summonFullParams(model, () => undefined),
  };

  describe.each(Object.keys(calls))('by %s', (name) => {
    it.each([false, true])('the module is named after a first step: %s', (isTrained) =>
      onRanks(2, async (rank) => {
        const { model, inner } = bodyAndHead(rank);
        if (isTrained) {
          await trainOnce(model, rowsOf(rank));
        }
        inner.replaceChild('1', new Stack(rank.device, [layer(rank.device)]));
        const message = await messageOf(calls[name]!(model, rank));
        expect(message).toMatch(/'1\.0\.weight', '1\.0\.bias' in none/);
      }),
    );
  });
});

it('a parameter that no module has any more is named with its flat parameter', () =>
  onRanks(2, async (rank) => {
    const { model, inner } = bodyAndHead(rank);
    inner.replaceChild('1', wrapIn(rank)(layer(rank.device), 'head'));
    const message = await messageOf(model.initialize());
    expect(message).toMatch(/flat parameter 'root' .* got '1\.weight', '1\.bias'/);
  }));

it('an instance taken out of its wrapper is named', () =>
  onRanks(2, async (rank) => {
    const { model, inner } = bodyAndHead(rank);
    const body = inner.children().get('0') as FullyShardedDataParallel;
    inner.replaceChild('0', body.module);
    expect(await messageOf(model.initialize())).toMatch(/'0\.weight', '0\.bias' of 'body'/);
  }));

it.each([0, 2])('a wrapped head put in for a wrapped one after %i steps is trained', async (at) => {
  const optimizers = new Map<Module, Sgd>();
  const replaceHead = (model: Module) => {
    const isSharded = model instanceof FullyShardedDataParallel;
    const fresh = new Linear(model.device, { inFeatures: 6, outFeatures: 6 });
    const wrapped = isSharded
      ? new FullyShardedDataParallel(fresh, { processGroup: model.processGroup })
      : fresh;
    (isSharded ? model.module : model).replaceChild('0', wrapped);
    optimizers.set(model, new Sgd(fresh.parameters(), { lr: 0.5 }));
  };
  await expectEqualTraining(
    {
      build: (device, wrap) => wrap(new Stack(device, [wrap(layer(device)), wrap(layer(device))])),
      steps: 4,
      run: async (model, rows, step) => {
        if (step === at) {
          replaceHead(model);
        }
        const loss = await trainOnce(model, rows, step);
        await optimizers.get(model)?.step();
        optimizers.get(model)?.zeroGrad();
        return loss;
      },
    },
    2,
  );
  expect(optimizers.size).toBe(3); // These are the plain run's and the two ranks'.
});

it('a wrapped head put in later is in a save before any forward', () =>
  onRanks(2, async (rank) => {
    const { device } = rank;
    const inner = new Stack(device, [
      wrapIn(rank)(layer(device), 'body'),
      wrapIn(rank)(layer(device), 'old'),
    ]);
    const model = wrapIn(rank)(inner, 'root');
    await trainOnce(model, rowsOf(rank));
    const fresh = layer(device);
    const values = await fresh.weight.toArray();
    inner.replaceChild('1', wrapIn(rank)(fresh, 'new'));
    const { data } = (await stateDict(model)).get('1.weight')!;
    expect(new Float32Array(data.slice().buffer)).toEqual(values);
    expect(model.instances().map(({ isRoot }) => isRoot)).toEqual([true, false, false]);
    for (const { parameters, full } of model.instances().flatMap(({ units }) => units)) {
      expect(parameters[0]!.tensor.storage).toBe(full.storage);
    }
  }));

it('a wrapped head put in inside noSync takes part in what adds up there', () =>
  onRanks(2, async (rank) => {
    const { device } = rank;
    const inner = new Stack(device, [
      wrapIn(rank)(layer(device), 'body'),
      wrapIn(rank)(layer(device), 'old'),
    ]);
    const model = wrapIn(rank)(inner, 'root');
    await model.noSync(async () => {
      await trainOnce(model, rowsOf(rank));
      inner.replaceChild('1', wrapIn(rank)(layer(device), 'new'));
      await trainOnce(model, rowsOf(rank));
      const flats = model.instances().flatMap(({ units }) => units.map(({ flat }) => flat));
      expect(flats.map(({ grad }) => grad)).toEqual([undefined, undefined]);
    });
  }));

/** This module computes x times the transpose of another module's weight. */
class Tied extends Module<[x: Tensor], Tensor> {
  constructor(device: Device, weight: Tensor) {
    super(device);
    this.sharedParameter('weight', weight);
  }
  async forward(x: Tensor): Promise<Tensor> {
    return matmul(x, transpose(this.ownParameters().get('weight')!));
  }
}

describe("an instance that uses another's parameter", () => {
  function tied(rank: Rank) {
    const { device } = rank;
    const first = layer(device);
    const owner = wrapIn(rank)(first, 'owner');
    const user = wrapIn(rank)(
      new Stack(device, [new Tied(device, first.weight), layer(device)]),
      'user',
    );
    const model = wrapIn(rank)(new Stack(device, [owner, user]), 'root');
    return { model, user, owner };
  }

  it.each(['host', 'device'] as const)('stateDict to %s has its values', (stateDictDevice) =>
    onRanks(2, async (rank) => {
      const { model, user } = tied(rank);
      await model.initialize();
      const whole = await weightsOf(model);
      const own = await stateDict(user, { stateDictDevice });
      expect([...own.keys()]).toEqual(['0.weight', '1.weight', '1.bias']);
      const { data, tensor } = own.get('0.weight')!;
      const bytes = (await tensor?.toBytes()) ?? data;
      expect(new Float32Array(bytes.slice().buffer)).toEqual(whole.get('0.weight'));
      for (const entry of own.values()) {
        entry.tensor?.dispose();
      }
    }),
  );

  it('loadStateDict writes it, and leaves the rest of its flat parameter', () =>
    onRanks(2, async (rank) => {
      const { model, user } = tied(rank);
      await model.initialize();
      const before = await weightsOf(model);
      const entries = await stateDict(user);
      for (const { data } of entries.values()) {
        new Float32Array(data.buffer).fill(3);
      }
      await loadStateDict(user, entries);
      const after = await weightsOf(model);
      expect(new Set(after.get('0.weight'))).toEqual(new Set([3]));
      expect(after.get('0.bias')).toEqual(before.get('0.bias'));
    }));

  it.each([true, false])('summonFullParams has it present, recurse: %s', (recurse) =>
    onRanks(2, async (rank) => {
      const { model, user } = tied(rank);
      await model.initialize();
      const whole = (await weightsOf(model)).get('0.weight');
      await summonFullParams(
        user,
        async () => expect(await user.parameters()[0]!.toArray()).toEqual(whole),
        { recurse },
      );
      expectIdle(model);
      await trainOnce(model, rowsOf(rank));
    }),
  );

  it('apply has it present, in the user and in the owner', () =>
    onRanks(2, async (rank) => {
      const { model } = tied(rank);
      const sizes: number[] = [];
      await apply(model, async (module) => {
        for (const tensor of module.ownParameters().values()) {
          sizes.push((await tensor.toArray()).length);
        }
      });
      expect(sizes).toEqual([36, 6, 36, 36, 6]);
    }));

  it('is refused where whole flat parameters are handled', () =>
    onRanks(2, async (rank) => {
      const { model, user } = tied(rank);
      await model.initialize();
      const optimizer = new Sgd(user.parameters(), { lr: 1 });
      for (const call of [
        () => localStateDict(user),
        () => loadLocalStateDict(user, new Map(), { strict: false }),
        async () => localMetadataDict(user),
        () => gatherFullOptimStateDict(user, optimizer),
        () => saveCheckpoint(user, place()),
      ]) {
        expect(await messageOf(call())).toMatch(/'user', which uses one of 'owner'/);
      }
    }));

  it('needs the root to be known', () =>
    onRanks(2, async (rank) => {
      const { user } = tied(rank);
      expect(await messageOf(stateDict(user))).toMatch(/'0\.weight' of 'owner'/);
    }));
});
