// The tensors of these state dicts are read when they are asked for. So a model of any size passes
// through the host one tensor at a time, and never comes to the device.

import {
  BatchNorm1d,
  type HostTensor,
  type LazyTensor,
  Linear,
  lazyStateDict,
  loadStateDict,
  Sequential,
  StateDictError,
  stateDict,
} from '@shardweave/nn';
import { OffloadModel } from '@shardweave/offload';
import { Device } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { afterEach, beforeEach, expect, it } from 'vitest';

let device: Device;
beforeEach(() => {
  device = new Device(createReferenceBackend(), { seed: 2 });
});
afterEach(() => device.dispose());

function model(): OffloadModel {
  const layers = [
    new Linear(device, { inFeatures: 5, outFeatures: 6 }),
    new BatchNorm1d(device, { numFeatures: 6 }),
    new Linear(device, { inFeatures: 6, outFeatures: 3 }),
  ];
  return new OffloadModel(new Sequential(device, layers), { numSlices: 3 });
}

it('gives what stateDict does, buffers and parts too, and reads a tensor as it is then', async () => {
  const one = model();
  const [whole, lazy] = [await stateDict(one), await lazyStateDict(one)];
  expect([...lazy.keys()]).toEqual([...whole.keys()]);
  for (const [name, { dtype, shape, read }] of lazy) {
    expect({ dtype, shape, data: await read() }).toEqual(whole.get(name));
  }
  const part = await lazy.get('2.weight')!.readPart!({ first: 3, count: 2 });
  expect(part).toEqual(whole.get('2.weight')!.data.subarray(12, 20));
  const other = await stateDict(model());
  await loadStateDict(one, other);
  expect(await lazy.get('2.weight')!.read()).toEqual(other.get('2.weight')!.data);
});

it('loads into another model, each tensor read once, nothing of it on the device', async () => {
  const source = await lazyStateDict(model());
  const reads: string[] = [];
  const noted = new Map<string, LazyTensor>(
    [...source].map(([name, { dtype, shape, read }]) => {
      const note = () => {
        reads.push(name);
        return read();
      };
      return [name, { dtype, shape, read: note }];
    }),
  );
  const target = model();
  await target.moveToStore();
  const before = device.ledger.live().total;
  device.ledger.resetPeak();
  await loadStateDict(target, noted);
  expect(device.ledger.peak().total).toBe(before);
  expect(reads.sort()).toEqual([...source.keys()].sort());
  for (const [name, { data }] of await stateDict(target)) {
    expect(data).toEqual(await source.get(name)!.read());
  }
});

it('reads nothing where names or shapes differ, and says which tensor gave too few bytes', async () => {
  const target = model();
  const before = await stateDict(target);
  let numReads = 0;
  const read = async () => {
    numReads += 1;
    return new Uint8Array(8);
  };
  const withBias = (shape: readonly number[]) =>
    new Map<string, HostTensor | LazyTensor>([
      ...before,
      ['2.bias', { dtype: 'f32', shape, read }],
    ]);
  await expect(loadStateDict(target, withBias([4]))).rejects.toThrow(
    /Misshapen: '2\.bias': expected f32 \[3\], got f32 \[4\]\./,
  );
  expect(numReads).toBe(0);
  const short = loadStateDict(target, withBias([3]));
  await expect(short).rejects.toThrow(StateDictError);
  await expect(short).rejects.toThrow(/12 bytes of '2\.bias', f32 \[3\], got 8/);
});
