// Where a device computes in the host's memory, the host fills and reads that memory itself: it
// hands blocks to storages, takes them back, and is lent what storages hold.

import { type Backend, Device, StateError } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { afterEach, beforeEach, expect, it } from 'vitest';

const BYTES = 2 ** 20;

let backend: Backend;
let device: Device;

beforeEach(async () => {
  backend = await createCpuBackend({ threads: 1 });
  device = new Device(backend);
});

afterEach(() => backend.dispose());

function floats(bytes: Uint8Array): Set<number> {
  return new Set(new Float32Array(bytes.slice().buffer));
}

function storage() {
  return device.storage(BYTES / 4, 'f32', 'gathered');
}

it('a block that the host has filled becomes the values of a storage, and leaves with them', async () => {
  const block = device.pool.blocks.take(BYTES)!;
  await block.settle();
  new Float32Array(block.bytes.buffer, block.bytes.byteOffset, BYTES / 4).fill(5);
  expect(device.ledger.live().total).toBe(0);
  const x = storage();
  x.hold(block);
  expect(device.ledger.live().gathered).toBe(BYTES);
  const view = x.view();
  backend.run('affine', { x: view, out: view, scale: 2, shift: 0 });
  const taken = x.device.pool.blocks.takeFrom(x)!;
  expect([x.isFilled, device.ledger.live().total]).toEqual([false, 0]);
  await taken.settle();
  expect(floats(taken.bytes)).toEqual(new Set([10]));
  taken.release();
  expect(device.pool.blocks.take(BYTES)!.bytes.byteOffset).toBe(block.bytes.byteOffset);
});

it('a block that commands still read is settled once they have run', async () => {
  const x = storage();
  x.device.pool.blocks.fill(x);
  const out = device.empty([BYTES / 4]).keep();
  backend.run('fill', { out: x.view(), value: 3 });
  for (let pass = 0; pass < 50; pass++) {
    backend.run('affine', { x: x.view(), out: out.view(), scale: 1, shift: 0 });
  }
  x.free();
  const next = device.pool.blocks.take(BYTES)!;
  await next.settle();
  next.bytes.fill(0);
  expect(floats(await out.toBytes())).toEqual(new Set([3]));
});

it('a storage that is filled in a block gives it back as it is freed', () => {
  const [x, y] = [storage(), storage()];
  x.device.pool.blocks.fill(x);
  x.device.pool.blocks.fill(x);
  const { buffer } = x.view();
  x.free();
  y.device.pool.blocks.fill(y);
  expect(y.view().buffer).toBe(buffer);
  y.release();
  expect(device.ledger.live().total).toBe(0);
});

it('a disposed device gives the memory back that the host has, once the host is done', async () => {
  const block = device.pool.blocks.take(BYTES)!;
  const [held, lent] = [storage(), storage()];
  held.device.pool.blocks.fill(held);
  lent.fill();
  const loan = lent.device.pool.blocks.lend(lent)!;
  device.dispose();
  expect(backend.usage().bytes).toBe(2 * BYTES);
  block.release();
  expect(backend.usage().bytes).toBe(BYTES);
  loan.close();
  expect(backend.usage().bytes).toBe(0);
});

it('lent bytes are those of the commands before, and nobody writes them until the loan ends', async () => {
  const x = storage();
  x.fill();
  // So many that the device is at work when the loan is asked for, however late that is.
  for (let value = 0; value < 2000; value++) {
    backend.run('fill', { out: x.view(), value });
  }
  const loan = x.device.pool.blocks.lend(x)!;
  expect(() => x.write(new Uint8Array(4))).toThrow(StateError);
  expect(floats(await loan.bytes)).toEqual(new Set([1999]));
  loan.close();
  x.write(new Uint8Array(4));
  expect(x.readers.size).toBe(0);
});

it('blocks and loans are of devices alone that compute in memory which the host shares', async () => {
  const inline = await createCpuBackend({ threads: 0 });
  for (const other of [inline, createReferenceBackend()]) {
    const alone = new Device(other);
    expect(alone.pool.blocks.take(BYTES)).toBeUndefined();
    const x = alone.storage(1, 'f32', 'gathered');
    x.device.pool.blocks.fill(x);
    expect([x.device.pool.blocks.lend(x), x.device.pool.blocks.takeFrom(x)]).toEqual([
      undefined,
      undefined,
    ]);
    await other.dispose();
  }
  device.pool.limitBytes = 2 * BYTES;
  expect(device.pool.blocks.take(BYTES)).toBeUndefined();
});
