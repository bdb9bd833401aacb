// Whatever wraps a model, backward refuses values that were changed in place since its forward, and
// takes everything that leaves them as they were: gathers, loads, norms, evaluation, saves, and
// steps of other parameters of the same flat.

import type { PieceStore } from '@shardweave/checkpoint';
import { DistributedDataParallel } from '@shardweave/ddp-buckets';
import { FullyShardedDataParallel } from '@shardweave/fsdp';
import { summonFullParams } from '@shardweave/fsdp/fairscale';
import * as nn from '@shardweave/nn';
import { stateDict } from '@shardweave/nn';
import { type Device, square, sum, type Tensor } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';
import { onRanks, type Rank } from '../../../tooling/test-kit/ranks.js';
import {
  backward,
  offloaded,
  place,
  STRATEGIES,
  type Strategy,
  sharded,
  under,
  type Wrapped,
} from './support/each-strategy.js';

const LR = 0.1;

const named = (name: string) => STRATEGIES.find((each) => each.name === name)!;

function checkpointed(strategy: Strategy): Strategy {
  const wrap: Strategy['wrap'] = (module, rank) => {
    const wrapped = strategy.wrap(module, rank);
    return { ...wrapped, model: nn.checkpoint(wrapped.model) };
  };
  return { ...strategy, name: `a checkpoint around ${strategy.name}`, wrap };
}

const inBf16 = { mixedPrecision: true, computeDType: 'bf16' } as const;
const CASES: readonly Strategy[] = [
  ...STRATEGIES,
  {
    name: 'fsdp that keeps its copies',
    numRanks: 2,
    wrap: sharded({ reshardAfterForward: false }),
  },
  { name: 'fsdp in bf16', numRanks: 2, wrap: sharded(inBf16) },
  {
    name: 'offload with checkpoints',
    numRanks: 1,
    wrap: offloaded({ checkpointActivation: true }),
  },
  checkpointed(named('plain')),
  checkpointed(named('fsdp at 2')),
];

const CHANGES = {
  'a step': {
    by: 'Sgd.step',
    run: ({ model }: Wrapped) => new nn.Sgd(model.parameters(), { lr: LR }).step(),
  },
  'a load of a state dict': {
    by: '(a load|storage.write)',
    run: (wrapped: Wrapped) => wrapped.reload(),
  },
  'a load of a save': {
    by: '(loadCheckpoint|storage.write)',
    run: async (wrapped: Wrapped, store: PieceStore) => {
      await wrapped.save(store, {});
      await wrapped.load(store, {});
    },
  },
};

/** Changes a model between a forward and its backward. Returns how the backward ended, as text. */
async function backwardAfter(wrapped: Wrapped, change: () => Promise<unknown>): Promise<string> {
  await backward(wrapped, 0); // so that a step has gradients
  const { model } = wrapped;
  return model.device.scope(async () => {
    const x = model.device.tensor([1, 2, 3, 4, 5, 6], [2, 3], { requiresGrad: true });
    const loss = sum(square(await model.call(x)));
    await change();
    return loss.backward().then(
      () => 'done',
      (error: unknown) => (error as Error).message,
    );
  });
}

describe.each(CASES.map((each) => [each.name, each] as const))('%s', (_, strategy) => {
  it.each(Object.keys(CHANGES))('refuses %s between a forward and its backward', async (name) => {
    const { by, run } = CHANGES[name as keyof typeof CHANGES];
    const texts: string[] = [];
    const store = place();
    await under(strategy, async (wrapped) => {
      texts.push(await backwardAfter(wrapped, () => run(wrapped, store)));
    });
    expect(texts).not.toContain('done'); // on no rank
    const refused = `expected what '(linear|checkpoint)' saved .*'(module.)?[01].weight' .*, which ${by} changed`;
    expect(texts.join('\n')).toMatch(new RegExp(refused));
  });

  it('takes evaluation, norms, saves and a look at whole parameters between them', async () => {
    const store = place();
    const outcome = await under(strategy, (wrapped) =>
      backwardAfter(wrapped, async () => {
        const { model } = wrapped;
        const { device } = model;
        await device.noGrad(() => model.call(device.tensor([7, 8, 9], [1, 3])));
        await wrapped.norm();
        await wrapped.save(store, {});
        await (await wrapped.capture?.({}))?.release();
        await wrapped.state();
        if (model instanceof FullyShardedDataParallel) {
          await summonFullParams(model, () => undefined);
        }
      }),
    );
    expect(outcome).toBe('done');
  });
});

const linear = (device: Device, outFeatures: number) =>
  new nn.Linear(device, { inFeatures: 2, outFeatures, bias: false });

/** A generator and a discriminator in one module, and so in one flat. */
class Gan extends nn.Module<[part: 'g' | 'd', x: Tensor], Tensor> {
  readonly g: nn.Linear;
  readonly d: nn.Linear;

  constructor(device: Device) {
    super(device);
    this.g = this.child('g', linear(device, 2));
    this.d = this.child('d', linear(device, 1));
    for (const [layer, values] of [
      [this.g, G],
      [this.d, D],
    ] as const) {
      layer.weight.storage.write(new Uint8Array(Float32Array.from(values).buffer));
    }
  }

  forward(part: 'g' | 'd', x: Tensor): Promise<Tensor> {
    return this[part].call(x);
  }
}

const Z = [0.5, -0.25];
const G = [0.3, -0.7, 0.2, 0.4];
const D = [0.6, -0.1];

/** The generator's weights after one step of each, as float64 loops compute them. */
function expectedG(): number[] {
  const fake = [0, 1].map((i) => G[2 * i]! * Z[0]! + G[2 * i + 1]! * Z[1]!);
  const score = (d: readonly number[]) => d[0]! * fake[0]! + d[1]! * fake[1]!;
  const d = D.map((value, i) => value - LR * 2 * score(D) * fake[i]!);
  return G.map((value, i) => value - LR * 2 * score(d) * d[i >> 1]! * Z[i % 2]!);
}

type Wrap = (model: Gan, rank: Rank) => nn.Module;

const ofFsdp =
  (options = {}): Wrap =>
  (model, { group }) =>
    new FullyShardedDataParallel(model, { processGroup: group, ...options });

it.each<[name: string, numRanks: number, wrap: Wrap]>([
  ['plain', 1, (model) => model],
  [
    'packed',
    1,
    (model) => {
      nn.packParameters(model);
      return model;
    },
  ],
  [
    'ddp',
    2,
    (model, { group }) =>
      new DistributedDataParallel(model, { processGroup: group, findUnusedParameters: true }),
  ],
  ['fsdp', 1, ofFsdp()],
  ['fsdp', 2, ofFsdp()],
  ['fsdp on the host', 2, ofFsdp({ moveParamsToCpu: true })],
  ['fsdp in bf16', 2, ofFsdp(inBf16)],
])(
  'a graph through a generator lives on over a step of its discriminator: %s at %i',
  async (name, numRanks, wrap) => {
    const backend = createReferenceBackend();
    await onRanks(
      numRanks,
      async (rank) => {
        const { device } = rank;
        const gan = new Gan(device);
        const model = wrap(gan, rank);
        const [g, d] = model.parameters().map((one) => new nn.Sgd([one], { lr: LR }));
        await device.scope(async () => {
          // An input that requires grad makes the generator save its weight.
          const z = device.tensor(Z, [1, 2], { requiresGrad: true });
          const fake = await model.call('g', z);
          await sum(square(await model.call('d', fake.detach()))).backward();
          await d!.step();
          model.zeroGrad();
          await sum(square(await model.call('d', fake))).backward();
          await g!.step();
        });
        const isSharded = model instanceof FullyShardedDataParallel;
        const { data } = (isSharded ? await stateDict(model) : await nn.stateDict(gan)).get(
          'g.weight',
        ) as { data: Uint8Array };
        const digits = name.includes('bf16') ? 2 : 6;
        for (const [i, value] of new Float32Array(data.slice().buffer).entries()) {
          expect(value).toBeCloseTo(expectedG()[i]!, digits);
        }
      },
      { backend },
    );
  },
);
