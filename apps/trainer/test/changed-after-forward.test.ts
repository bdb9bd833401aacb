// Whatever wraps a model, backward refuses values that were changed in place since its forward, and
// takes everything that leaves them as they were: gathers, loads, norms, evaluation, saves, and
// steps of other parameters of the same flat.

import { createMemoryGroup, type ProcessGroup } from '@shardweave/collectives';
import { DistributedDataParallel } from '@shardweave/ddp-buckets';
import * as fsdp from '@shardweave/fsdp';
import {
  captureCheckpoint,
  checkpoint,
  clipGradNorm,
  Linear,
  loadStateDict,
  Module,
  packParameters,
  Sequential,
  Sgd,
  stateDict,
} from '@shardweave/nn';
import * as offload from '@shardweave/offload';
import { createHostStore } from '@shardweave/shard-store';
import { Device, square, sum, type Tensor } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';

const LR = 0.1;

/** A rank's model inside its wrapper, and how that wrapper loads a state dict. */
interface Rig {
  readonly device: Device;
  readonly model: Module;
  readonly rank: number;
  reload(): Promise<void>;
}

type Wrap = (model: Module, group: ProcessGroup) => Pick<Rig, 'model' | 'reload'>;
interface Strategy {
  readonly numRanks: number;
  readonly wrap: Wrap;
}

const reloading = (model: Module, inner = model) => ({
  model,
  reload: async () => loadStateDict(inner, await stateDict(inner)),
});

function sharded(options: Partial<fsdp.FsdpOptions> = {}): Wrap {
  return (inner, processGroup) => {
    const store = options.offloadConfig && { offloadConfig: { store: createHostStore() } };
    const all = { processGroup, ...options, ...store };
    const model = new fsdp.FullyShardedDataParallel(inner, all);
    return { model, reload: async () => fsdp.loadStateDict(model, await fsdp.stateDict(model)) };
  };
}

function offloaded(options: offload.OffloadOptions = {}): Wrap {
  return (inner) => {
    const model = new offload.OffloadModel(inner as Sequential, options);
    return {
      model,
      reload: async () => offload.loadStateDict(model, await offload.stateDict(model)),
    };
  };
}

/** Those that take any module, and those that take layers alone. */
const OF_MODULES: Record<string, Strategy> = {
  plain: { numRanks: 1, wrap: (model) => reloading(model) },
  packed: {
    numRanks: 1,
    wrap: (model) => {
      packParameters(model);
      return reloading(model);
    },
  },
  'ddp over 2 ranks': {
    numRanks: 2,
    wrap: (model, processGroup) =>
      reloading(
        new DistributedDataParallel(model, { processGroup, findUnusedParameters: true }),
        model,
      ),
  },
  'fsdp over 1 rank': { numRanks: 1, wrap: sharded() },
  'fsdp over 2 ranks': { numRanks: 2, wrap: sharded() },
  'fsdp over 2 ranks that keeps what it gathered': {
    numRanks: 2,
    wrap: sharded({ reshardAfterForward: false }),
  },
  'fsdp over 2 ranks in bf16': {
    numRanks: 2,
    wrap: sharded({ mixedPrecision: true, computeDType: 'bf16' }),
  },
  'fsdp over 2 ranks on the host': { numRanks: 2, wrap: sharded({ moveParamsToCpu: true }) },
};
const OF_LAYERS: Record<string, Strategy> = {
  checkpointed: {
    numRanks: 1,
    wrap: (model) => reloading(checkpoint(model), model),
  },
  'checkpointed around fsdp over 2 ranks': {
    numRanks: 2,
    wrap: (inner, group) => {
      const { model, reload } = sharded()(inner, group);
      return { model: checkpoint(model), reload };
    },
  },
  offload: { numRanks: 1, wrap: offloaded() },
  'offload in one slice': { numRanks: 1, wrap: offloaded({ numSlices: 1 }) },
  'offload with checkpoints': { numRanks: 1, wrap: offloaded({ checkpointActivation: true }) },
};

/** Runs `body` on each rank, over a model of its own. Each rank closes its group at the end. */
async function onRanks(
  { numRanks, wrap }: Strategy,
  make: (device: Device) => Module,
  body: (rig: Rig) => Promise<void>,
): Promise<void> {
  await Promise.all(
    createMemoryGroup(numRanks).map(async (group, rank) => {
      const device = new Device(createReferenceBackend(), { seed: 3 });
      try {
        await body({ device, rank, ...wrap(make(device), group) });
      } finally {
        await group.close();
      }
    }),
  );
}

const linear = (device: Device, outFeatures: number) =>
  new Linear(device, { inFeatures: 2, outFeatures, bias: false });
const layers = (device: Device) =>
  new Sequential(device, [linear(device, 2), linear(device, 2), linear(device, 1)]);

/** A generator and a discriminator in one module, and so in one flat. */
class Gan extends Module<[part: 'g' | 'd', x: Tensor], Tensor> {
  readonly g: Linear;
  readonly d: Linear;

  constructor(device: Device) {
    super(device);
    this.g = this.child('g', linear(device, 2));
    this.d = this.child('d', linear(device, 1));
  }

  forward(part: 'g' | 'd', x: Tensor): Promise<Tensor> {
    return this[part].call(x);
  }
}

const Z = [0.5, -0.25];
const G = [0.3, -0.7, 0.2, 0.4];
const D = [0.6, -0.1];

function gan(device: Device): Gan {
  const module = new Gan(device);
  for (const [tensor, values] of [
    [module.parameters()[0]!, G],
    [module.parameters()[1]!, D],
  ] as const) {
    tensor.storage.write(new Uint8Array(Float32Array.from(values).buffer));
  }
  return module;
}

/** The generator's weights after one step of each, as float64 loops compute them. */
function expectedG(): number[] {
  const fake = [0, 1].map((i) => G[2 * i]! * Z[0]! + G[2 * i + 1]! * Z[1]!);
  const score = (d: readonly number[]) => d[0]! * fake[0]! + d[1]! * fake[1]!;
  const d = D.map((value, i) => value - LR * 2 * score(D) * fake[i]!);
  return G.map((value, i) => value - LR * 2 * score(d) * d[i >> 1]! * Z[i % 2]!);
}

const strategies = { ...OF_MODULES, ...OF_LAYERS };

describe.each(Object.keys(strategies))('%s', (name) => {
  const strategy = strategies[name]!;

  /** Changes the model between a forward and its backward; returns how the backward ended. */
  async function backwardAfter(change: (rig: Rig) => Promise<void>): Promise<unknown[]> {
    const outcomes: unknown[] = [];
    await onRanks(strategy, layers, async (rig) => {
      const x = rig.device.tensor([1, 2, 3, 4], [2, 2]);
      const lossOf = async () => sum(square(await rig.model.call(x)));
      await rig.device.scope(async () => {
        await (await lossOf()).backward(); // so that a step has gradients
        const loss = await lossOf();
        await change(rig);
        outcomes.push(await loss.backward().catch((error: unknown) => error));
      });
    });
    return outcomes;
  }

  it.each([
    {
      change: 'a step',
      by: 'Sgd.step',
      run: ({ model }: Rig) => new Sgd(model.parameters(), { lr: LR }).step(),
    },
    { change: 'a load', by: '(a load|storage.write)', run: (rig: Rig) => rig.reload() },
  ])('refuses $change between a forward and its backward', async ({ by, run }) => {
    const outcomes = await backwardAfter(run);
    const messages = outcomes.map((outcome) => (outcome as Error | undefined)?.message);
    expect(messages.join('\n')).toMatch(
      new RegExp(
        `expected what '(linear|checkpoint)' saved .*'(module\\.)?[012]\\.weight' .*, which ${by} changed`,
      ),
    );
    expect(outcomes).not.toContain(undefined); // no rank goes on
  });

  it('takes evaluation, norms and the start of a save between them', async () => {
    const outcomes = await backwardAfter(async ({ device, model }) => {
      await device.noGrad(() => model.call(device.tensor([5, 6], [1, 2])));
      const parameters = model.parameters();
      if (model instanceof fsdp.FullyShardedDataParallel) {
        await fsdp.gradNorm(model);
        await fsdp.summonFullParams(model, () => undefined);
      } else if (!(model instanceof offload.OffloadModel) && !/fsdp/.test(name)) {
        await clipGradNorm(parameters, 1);
        await (await captureCheckpoint(model)).release();
      }
    });
    expect(outcomes).toEqual(outcomes.map(() => undefined));
  });
});

describe.each(Object.keys(OF_MODULES))('two optimizers over one flat, %s', (name) => {
  const strategy = OF_MODULES[name]!;

  it('a graph through the generator lives on over a step of the discriminator', async () => {
    await onRanks(strategy, gan, async ({ device, model }) => {
      const [g, d] = model.parameters().map((one) => new Sgd([one], { lr: LR })) as [Sgd, Sgd];
      await device.scope(async () => {
        // An input that requires grad makes the generator save its weight.
        const z = device.tensor(Z, [1, 2], { requiresGrad: true });
        const fake = await model.call('g', z);
        await sum(square(await model.call('d', fake.detach()))).backward();
        await d.step();
        model.zeroGrad();
        await sum(square(await model.call('d', fake))).backward();
        await g.step();
      });
      const values =
        model instanceof fsdp.FullyShardedDataParallel
          ? await fsdp.stateDict(model)
          : await stateDict(model instanceof DistributedDataParallel ? model.module : model);
      const { data } = values.get('g.weight') as { data: Uint8Array };
      const digits = name.includes('bf16') ? 2 : 6;
      for (const [i, value] of new Float32Array(data.slice().buffer).entries()) {
        expect(value).toBeCloseTo(expectedG()[i]!, digits);
      }
    });
  });
});
