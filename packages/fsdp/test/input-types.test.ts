// Arguments and results come in containers of all kinds, in full and in mixed precision.

import {
  autoWrap,
  defaultAutoWrapPolicy,
  enableWrap,
  FullyShardedDataParallel,
} from '@shardweave/fsdp';
import { checkpoint, Gpt2, Linear, Module } from '@shardweave/nn';
import { add, cast, type Device, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  DIM,
  inputs,
  lossOf,
  moduleOf,
  onRanks,
  type Rows,
  TINY,
  tokens,
} from '../../../tooling/test-kit/index.ts';
import { expectEqualTraining, wrapIn } from './support/sharding.js';

/**
 * These are named results that can also be read by number, like the outputs of Transformers'
 * models.
 */
class ModelOutput extends Map<string, Tensor> {
  readonly note: string;
  constructor(note: string) {
    super();
    this.note = note; // The constructor fails if a copy runs it without arguments.
    if (note === undefined) {
      throw new Error('note');
    }
  }
  at(index: number): Tensor {
    return [...this.values()][index]!;
  }
}

class TensorList extends Array<Tensor> {}

class Pair {
  readonly first: Tensor;
  readonly second: Tensor;
  constructor(first: Tensor, second: Tensor) {
    this.first = first;
    this.second = second;
  }
}

/**
 * For each kind of container: how x [rows, DIM] and y are passed in it, and how they are found
 * again.
 */
const KINDS = {
  list: {
    pack: (x: Tensor, y: Tensor): unknown => [x, [y]],
    unpack: (value: unknown) => (value as [Tensor, [Tensor]]).flat() as Tensor[],
    type: Array,
  },
  dict: {
    pack: (x: Tensor, y: Tensor): unknown => ({ x, more: { y, none: undefined, flag: 'on' } }),
    unpack: (value: unknown) => {
      const { x, more } = value as { x: Tensor; more: { y: Tensor; flag: string } };
      expect(more.flag).toBe('on');
      return [x, more.y];
    },
    type: Object,
  },
  map: {
    pack: (x: Tensor, y: Tensor): unknown =>
      new Map<unknown, unknown>([
        ['x', x],
        [7, new Set([y])],
      ]),
    unpack: (value: unknown) => {
      const map = value as Map<unknown, unknown>;
      return [map.get('x') as Tensor, ...(map.get(7) as Set<Tensor>)];
    },
    type: Map,
  },
  'subclass of a map': {
    pack: (x: Tensor, y: Tensor): unknown => new ModelOutput('seven').set('x', x).set('y', y),
    unpack: (value: unknown) => {
      expect((value as ModelOutput).note).toBe('seven');
      return [(value as ModelOutput).at(0), (value as ModelOutput).at(1)];
    },
    type: ModelOutput,
  },
  'subclass of an array': {
    pack: (x: Tensor, y: Tensor): unknown => TensorList.from([x, y]),
    unpack: (value: unknown) => [...(value as TensorList)],
    type: TensorList,
  },
  'class instance': {
    pack: (x: Tensor, y: Tensor): unknown => new Pair(x, y),
    unpack: (value: unknown) => [(value as Pair).first, (value as Pair).second],
    type: Pair,
  },
} as const;

type Kind = keyof typeof KINDS;
const kinds = Object.keys(KINDS) as Kind[];

/**
 * This module maps a container's two tensors linearly, and returns them in such a container again.
 */
class Contained extends Module<[value: unknown], unknown> {
  readonly linear: Linear;
  readonly #kind: Kind;
  readonly #seen: string[];
  constructor(device: Device, kind: Kind, seen: string[] = []) {
    super(device);
    this.#kind = kind;
    this.#seen = seen;
    this.linear = this.child('linear', new Linear(device, { inFeatures: DIM, outFeatures: DIM }));
  }
  async forward(value: unknown): Promise<unknown> {
    const { pack, unpack, type } = KINDS[this.#kind];
    expect((value as object).constructor).toBe(type);
    const [x, y] = unpack(value) as [Tensor, Tensor];
    this.#seen.push(x.dtype, y.dtype);
    return pack(await this.linear.call(x), await this.linear.call(y));
  }
}

function runOnce(kind: Kind) {
  return (model: Module, rows: Rows, step: number): Promise<number> =>
    model.device.scope(async () => {
      const { pack, unpack, type } = KINDS[kind];
      const [x, y] = [0, 5].map((shift) => inputs(model.device, rows, step + shift));
      const output: unknown = await model.call(pack(x!, y!));
      expect((output as object).constructor).toBe(type);
      const [a, b] = unpack(output) as [Tensor, Tensor];
      const loss = add(lossOf(cast(a, 'f32')), lossOf(cast(b, 'f32')));
      await loss.backward();
      return loss.item();
    });
}

describe('inputs and outputs in containers', () => {
  it.each(kinds)('%s: training equals the plain model, checkpointed too', async (kind) => {
    for (const place of ['none', 'inside', 'outside']) {
      await expectEqualTraining(
        {
          build: (device, wrap) => {
            const bare = new Contained(device, kind);
            if (place === 'inside') {
              return wrap(checkpoint(bare));
            }
            const wrapped = wrap(bare) as typeof bare;
            return place === 'outside' ? wrap(checkpoint(wrapped)) : wrap(wrapped);
          },
          run: runOnce(kind),
        },
        2,
      );
    }
  });

  it.each(kinds)('%s: mixed precision casts what is inside, and gradients reach it', (kind) =>
    onRanks(2, async ({ device, group, rank }) => {
      const seen: string[] = [];
      const wrap = wrapIn({ group }, { mixedPrecision: true, computeDType: 'bf16' });
      const model = wrap(new Contained(device, kind, seen));
      const [x, y] = [0, 5].map((shift) => {
        const tensor = inputs(device, { first: rank, count: 2 }, shift).keep();
        tensor.requiresGrad = true;
        return tensor;
      }) as [Tensor, Tensor];
      const { pack, unpack } = KINDS[kind];
      await device.scope(async () => {
        const [a] = unpack(await model.call(pack(x, y))) as [Tensor];
        expect(a.dtype).toBe('bf16');
        await lossOf(a).backward();
      });
      expect(seen).toEqual(['bf16', 'bf16']);
      expect(x.grad!.dtype).toBe('f32');
      expect((await x.grad!.toArray()).some((value) => value !== 0)).toBe(true);
      expect(y.grad).toBeUndefined();
      model.assertState('idle');
      expect(device.memory().live).toMatchObject({ gathered: 0, staging: 0 });
    }),
  );

  it('integers stay as they are, and other values are passed as the same', async () => {
    class Mixed extends Module<[value: { ids: Tensor; other: object }], Tensor> {
      readonly linear = this.child(
        'linear',
        new Linear(this.device, { inFeatures: 2, outFeatures: 2 }),
      );
      seen: { ids: Tensor; other: object } | undefined;
      forward(value: { ids: Tensor; other: object }): Promise<Tensor> {
        this.seen = value;
        return this.linear.call(cast(value.ids, this.linear.weight.dtype));
      }
    }
    await onRanks(1, async ({ device, group }) => {
      const options = { processGroup: group, mixedPrecision: true };
      const model = new FullyShardedDataParallel(new Mixed(device), options);
      const other = { when: new Date(0) };
      const ids = device.tensor(Int32Array.of(3, 4), [1, 2]);
      await device.noGrad(() => model.call({ ids, other }));
      expect(model.module.seen!.ids).toBe(ids);
      expect(model.module.seen!.other).toBe(other);
    });
  });
});

describe('an auto-wrapped transformer in evaluation', () => {
  /** Returns its logits as Transformers' models do. */
  const withOutput = (device: Device) =>
    moduleOf(
      device,
      { gpt2: new Gpt2(device, TINY, { seed: 3 }) },
      async ({ gpt2 }, ids: Tensor) => {
        const logits = await gpt2.call(ids);
        return new ModelOutput('gpt2').set('logits', logits).set('doubled', add(logits, logits));
      },
    );

  it('gives an output of its own class, by name and by number, bit-equal to the plain one', async () => {
    const { ids } = tokens(0, 2, 8, 37);
    const evaluate = (model: Module, device: Device) =>
      device.noGrad(() =>
        device.scope(async () => {
          const output = (await model.eval().call(device.tensor(ids, [2, 8]))) as ModelOutput;
          expect(output).toBeInstanceOf(ModelOutput);
          expect(output.note).toBe('gpt2');
          expect(output.at(0)).toBe(output.get('logits'));
          return Promise.all([output.at(0), output.at(1)].map((tensor) => tensor.toArray()));
        }),
      );
    const [plain] = await onRanks(1, ({ device }) => evaluate(withOutput(device), device));
    const sharded = await onRanks(2, async ({ device, group }) => {
      const wrap = enableWrap({ processGroup: group });
      const policy = defaultAutoWrapPolicy({ minNumParams: 500, skipParamsCheckForRoot: true });
      const { module } = autoWrap(withOutput(device), policy, wrap);
      const first = await evaluate(module, device);
      expect(await evaluate(module, device)).toEqual(first);
      expect(device.memory().live.activation).toBe(0);
      return first;
    });
    for (const outputs of sharded) {
      expect(outputs).toEqual(plain);
    }
  });
});
