// Some state dicts have other dtypes than the model. Their values are converted, and never copied
// as bytes.

import {
  BatchNorm1d,
  type HostTensor,
  Linear,
  loadStateDict,
  Sequential,
  StateDictError,
  stateDict,
} from '@shardweave/nn';
import { OffloadModel } from '@shardweave/offload';
import { createHostStore } from '@shardweave/shard-store';
import { cast, Device, type DType } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { expect, it } from 'vitest';

const DIM = 3;

function build(store = createHostStore()) {
  const device = new Device(createReferenceBackend(), { seed: 5 });
  const layers = [
    new Linear(device, { inFeatures: DIM, outFeatures: DIM }),
    new BatchNorm1d(device, { numFeatures: DIM }),
  ];
  return { device, model: new OffloadModel(new Sequential(device, layers), { store }) };
}

/** Replaces every float entry by values that 16 bits can hold, in `dtype`. */
async function inDType(dtype: 'f16' | 'bf16') {
  const { device, model } = build();
  const entries = new Map<string, HostTensor<DType>>();
  const expected = new Map<string, number[]>();
  let next = 0;
  for (const [name, entry] of await stateDict(model)) {
    if (entry.dtype !== 'f32') {
      entries.set(name, entry);
      continue;
    }
    const { shape } = entry;
    const size = shape.reduce((product, dim) => product * dim, 1);
    const values = Array.from({ length: size }, (_, i) => (next + i) / 4 - 2);
    next += size;
    const data = await device.scope(() => cast(device.tensor(values), dtype).toBytes());
    entries.set(name, { dtype, shape, data });
    expected.set(name, values);
  }
  return { entries, expected };
}

it.each(['f16', 'bf16'] as const)('parameters and buffers in %s become f32', async (dtype) => {
  const { entries, expected } = await inDType(dtype);
  const { model } = build();
  await loadStateDict(model, entries);
  for (const [name, { dtype, data }] of await stateDict(model)) {
    if (dtype !== 'f32') {
      continue;
    }
    expect([...new Float32Array(data.slice().buffer)], name).toEqual(expected.get(name));
  }
});

it('integers for floats, and floats for integers, are refused', async () => {
  const { model } = build();
  const state = await stateDict(model);
  const swap = (name: string, dtype: DType) =>
    new Map([...state, [name, { ...state.get(name)!, dtype }]] as const);
  for (const wrong of [swap('0.bias', 'i32'), swap('1.num_batches_tracked', 'f32')]) {
    await expect(loadStateDict(model, wrong)).rejects.toThrow(StateDictError);
  }
  expect(await stateDict(model)).toEqual(state);
});

it('a layer is written once, however many parameters it has', async () => {
  const state = await stateDict(build().model);
  const store = createHostStore();
  const { model } = build(store);
  await model.moveToStore();
  const written: string[] = [];
  const write = store.write.bind(store);
  store.write = (key, ...rest) => {
    written.push(key);
    return write(key, ...rest);
  };
  await loadStateDict(model, state);
  const parameters = written.filter((key) => key.endsWith('/parameter'));
  expect(parameters).toEqual(['offload.0/parameter', 'offload.1/parameter']);
});
