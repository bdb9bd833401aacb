// A state in any form loads into a model in any form: each kind of entry into each kind of
// parameter, and what comes out of it again, whole, lazily and in parts.

import { fromF32Array, toF32Array } from '@shardweave/dtypes';
import {
  checkpoint,
  type FileDType,
  type GivenEntry,
  Linear,
  lazyStateDict,
  loadStateDict,
  Module,
  ParameterInit,
  packParameters,
  stateDict,
} from '@shardweave/nn';
import { type Device, type DType, Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { makeDevice, read } from './support/support.js';

/** A layer of 15 and 3 numbers, a parameter within a larger storage, and two buffers. */
class Mixed extends Module<[x: Tensor], Tensor> {
  readonly inner: Linear;
  readonly part: Tensor;

  constructor(device: Device, isDeferred: boolean) {
    super(device);
    const init = new ParameterInit(device, { seed: 1, isDeferred });
    this.inner = this.child(
      'inner',
      new Linear(device, { inFeatures: 5, outFeatures: 3, init: init.at('inner') }),
    );
    const { storage } = device.zeros([9]).keep();
    this.part = this.parameter('part', new Tensor(storage, [4], 2, true));
    this.buffer('mean', device.tensor([7, 7, 7]));
    this.buffer('count', device.tensor([7], [1], { dtype: 'i32' }));
  }

  forward(x: Tensor): Promise<Tensor> {
    return this.inner.call(x);
  }
}

const numbers = (count: number, first: number) =>
  Float32Array.from({ length: count }, (_, i) => ((i * 3 + first) % 17) - 8);
/** What is loaded, by name; whole numbers, which all floats here have exactly. */
const VALUES = {
  'inner.weight': [[3, 5], numbers(15, 1)],
  'inner.bias': [[3], numbers(3, 5)],
  part: [[4], numbers(4, 2)],
  mean: [[3], numbers(3, 9)],
} as const;
const COUNT = new Uint8Array(Int32Array.of(3).buffer);

const FORMS: Readonly<Record<string, (device: Device) => Mixed>> = {
  plain: (device) => new Mixed(device, false),
  'in bf16': (device) => new Mixed(device, false).to('bf16'),
  deferred: (device) => new Mixed(device, true),
  'deferred, in f16': (device) => new Mixed(device, true).to('f16'),
  packed: (device) => {
    const model = new Mixed(device, false);
    packParameters(model);
    return model;
  },
  'packed, computing in bf16': (device) => {
    const model = new Mixed(device, false);
    packParameters(model, { computeDType: 'bf16' });
    return model;
  },
};

/** An array's bytes within another one, where they begin at an odd byte. */
function shifted(bytes: Uint8Array): Uint8Array {
  const larger = new Uint8Array(bytes.byteLength + 3);
  larger.set(bytes, 1);
  return larger.subarray(1, 1 + bytes.byteLength);
}

type Form = (dtype: DType, bytes: Uint8Array, shape: readonly number[]) => GivenEntry;

const lazy: Form = (dtype, bytes, shape) => ({ dtype, shape, read: async () => bytes });
const ENTRIES: Readonly<Record<string, Form>> = {
  bytes: (dtype, data, shape) => ({ dtype, shape, data }),
  'bytes at an odd place': (dtype, data, shape) => ({ dtype, shape, data: shifted(data) }),
  'what is read later': lazy,
  'what can be read in parts': (dtype, bytes, shape) => ({
    ...lazy(dtype, bytes, shape),
    readPart: async ({ first, count }, into) => {
      const size = dtype === 'f32' || dtype === 'i32' ? 4 : 2;
      const part = bytes.subarray(first * size, (first + count) * size);
      into?.set(part);
      return into === undefined ? part : into.subarray(0, part.byteLength);
    },
  }),
};

const stateOf = (form: Form, dtype: 'f32' | 'f16' | 'bf16') =>
  new Map<string, GivenEntry>([
    ...Object.entries(VALUES).map(([name, [shape, data]]): [string, GivenEntry] => [
      name,
      form(dtype, fromF32Array(data, dtype), shape),
    ]),
    ['count', form('i32', COUNT, [1])],
  ]);

const floats = (bytes: Uint8Array, dtype: FileDType) => [...toF32Array(bytes, dtype as DType)];

describe.each(Object.entries(FORMS))('a model that is %s', (_, make) => {
  it.each(
    Object.entries(ENTRIES).flatMap(([name, form]) =>
      (['f32', 'f16', 'bf16'] as const).map((dtype) => ({ name, form, dtype })),
    ),
  )('takes $name in $dtype, and gives them back', async ({ form, dtype }) => {
    const device = makeDevice();
    const model = make(device);
    const around = checkpoint(model);
    await loadStateDict(around, stateOf(form, dtype));
    expect(device.ledger.live().staging).toBe(0);
    const [state, later] = [await stateDict(model), await lazyStateDict(around)];
    expect([...later.keys()]).toEqual([...state.keys()]);
    for (const [name, [shape, wanted]] of Object.entries(VALUES)) {
      const entry = state.get(name)!;
      expect(entry.shape).toEqual(shape);
      expect(floats(entry.data, entry.dtype), name).toEqual([...wanted]);
      expect(await later.get(name)!.read()).toEqual(entry.data);
      for (const [first, count] of [
        [0, wanted.length],
        [1, 2],
        [2, 1],
      ] as const) {
        const part = await later.get(name)!.readPart?.({ first, count });
        const own =
          part === undefined ? [...wanted].slice(first, first + count) : floats(part, entry.dtype);
        expect(own, `${name}, ${count} from ${first}`).toEqual(
          [...wanted].slice(first, first + count),
        );
      }
    }
    expect(state.get('count')!.data).toEqual(COUNT);
    // It computes with them, too.
    const x = device.tensor([1, 0, 2, 0, 1], [1, 5], { dtype: model.part.dtype });
    const [weight, bias] = [VALUES['inner.weight'][1], VALUES['inner.bias'][1]];
    const expected = [0, 1, 2].map(
      (row) => weight[row * 5]! + 2 * weight[row * 5 + 2]! + weight[row * 5 + 4]! + bias[row]!,
    );
    expect(await read(await device.noGrad(() => model.call(x)))).toEqual(expected);
    device.dispose();
  });

  it('gives a state on the device, which stays when the scope of the call has ended', async () => {
    const device = makeDevice();
    const model = make(device);
    await loadStateDict(model, stateOf(ENTRIES.bytes!, 'f32'));
    const before = device.ledger.live().total;
    const state = await device.scope(() => stateDict(model, { stateDictDevice: 'device' }));
    const other = FORMS.plain!(makeDevice());
    await loadStateDict(other, state);
    for (const [name, [, wanted]] of Object.entries(VALUES)) {
      expect(state.get(name)!.data).toEqual(new Uint8Array(0));
      const { dtype, data } = (await stateDict(other)).get(name)!;
      expect(floats(data, dtype)).toEqual([...wanted]);
    }
    for (const { tensor } of state.values()) {
      tensor!.dispose();
    }
    expect(device.ledger.live().total).toBe(before);
  });
});
