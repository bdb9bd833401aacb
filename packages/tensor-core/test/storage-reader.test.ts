// A storage can be read while later work runs, and whoever would change it in place is told.

import { Device, StateError } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { expect, it } from 'vitest';

const floats = (bytes: Uint8Array) => [...new Float32Array(bytes.slice().buffer)];

it.each([0, 1, 2])('cpu with threads: %i reads it before later work is done', async (threads) => {
  const backend = await createCpuBackend({ threads });
  const device = new Device(backend);
  const x = device.tensor([1, 2, 3, 4], [4]);
  const busy = device.full([2 ** 20], 1);
  const add = (tensor: typeof x) =>
    backend.run('affine', { x: tensor.view(), out: tensor.view(), scale: 1, shift: 1 });
  add(x);
  const reader = x.storage.openReader();
  const first = reader.read(4, 8);
  // This is work for much longer than a read takes.
  for (let i = 0; i < 2000; i++) {
    add(busy);
  }
  let isDone = false;
  const done = device.synchronize().then(() => {
    isDone = true;
  });
  expect(floats(await first)).toEqual([3, 4]);
  expect(floats(await reader.read(0, 4))).toEqual([2]);
  expect(isDone).toBe(false);
  await done;
  reader.close();
  await backend.dispose();
  await expect(x.storage.openReader().read(0, 4)).rejects.toThrow(/disposed/);
});

it('the storage is not written and keeps its buffer until the reader is closed', async () => {
  const device = new Device(createReferenceBackend());
  const x = device.tensor([1, 2], [2]).keep();
  const { storage } = x;
  const reader = storage.openReader();
  expect([...storage.readers]).toEqual([reader]);
  expect(() => storage.write(new Uint8Array(8))).toThrow(StateError);
  const events: string[] = [];
  const waiting = reader.whenClosed().then(() => void events.push('changed'));
  x.dispose();
  expect(floats(await reader.read(0, 8))).toEqual([1, 2]);
  events.push('read');
  reader.close();
  reader.close();
  await waiting;
  expect(events).toEqual(['read', 'changed']);
  expect(reader.waitMs).toBeGreaterThan(0);
  expect(storage.readers.size).toBe(0);
  expect(device.ledger.live().total).toBe(0);
  await expect(reader.read(0, 8)).rejects.toThrow(/freed/);
});
