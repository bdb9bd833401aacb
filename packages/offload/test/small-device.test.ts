// A model has more than twice its device's budget. From its first values through a step, a save and
// a load, to text and its files, nothing brings the whole of it to the device, or into the memory
// of the host that uses its store.

import { piecesIn } from '@shardweave/checkpoint';
import {
  AdamW,
  Gpt2,
  lazyStateDict,
  loadCheckpoint,
  saveCheckpoint,
  type TokenArgs,
} from '@shardweave/nn';
import { OffloadModel } from '@shardweave/offload';
import { createHostStore, type ShardStore } from '@shardweave/shard-store';
import { Device, mean, type Tensor } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { afterEach, beforeEach, expect, it } from 'vitest';

const MIB = 2 ** 20;
/** The sizes give blocks of 3 MiB and a table of 4 MiB. */
const CONFIG = { n_embd: 256, n_layer: 9, n_head: 8, vocab_size: 4096, n_positions: 64 };
const LAYER_BYTES = 4.1 * MIB;
const BUDGET_BYTES = 14 * MIB;

let device: Device;
let dispose: () => Promise<void>;
beforeEach(async () => {
  const backend = await createCpuBackend({ threads: 1 });
  device = new Device(backend, { seed: 3 });
  dispose = () => backend.dispose();
});
afterEach(async () => {
  device.dispose();
  await dispose();
});

/**
 * Returns a store that notes the bytes of the arrays that others hold because of it, and their most
 * at once.
 */
function watched(store: ShardStore) {
  const seen = { most: 0, largestRead: 0 };
  let now = 0;
  const hold = async (bytes: Uint8Array, work: Promise<void>) => {
    now += bytes.byteLength;
    seen.most = Math.max(seen.most, now);
    await work.finally(() => {
      now -= bytes.byteLength;
    });
  };
  const watch: ShardStore = {
    description: store.description,
    locals: new Map(),
    get generation() {
      return store.generation;
    },
    get peakBytes() {
      return store.peakBytes;
    },
    keys: () => store.keys(),
    byteLength: (key) => store.byteLength(key),
    write: (key, bytes, options) => hold(bytes, store.write(key, bytes, options)),
    read: (key, into, options) => {
      seen.largestRead = Math.max(seen.largestRead, into.byteLength);
      return hold(into, store.read(key, into, options));
    },
    delete: (key) => store.delete(key),
    withdraw: (key) => store.withdraw(key),
    commit: () => store.commit(),
    close: () => store.close(),
  };
  return { store: watch, seen };
}

it('trains, saves, loads and is read without the whole on device or host', async () => {
  const { store, seen } = watched(createHostStore());
  const gpt2 = new Gpt2(device, CONFIG, { deferInit: true });
  const parameterBytes = gpt2.parameters().reduce((sum, { size }) => sum + 4 * size, 0);
  expect(parameterBytes).toBeGreaterThan(2 * BUDGET_BYTES);
  const model = new OffloadModel<TokenArgs, Tensor>(gpt2, {
    store,
    deviceBudgetBytes: BUDGET_BYTES,
    loadAheadBytes: LAYER_BYTES,
  });
  const optimizer = new AdamW(model.parameters(), { lr: 1e-3 });
  const ids = (first: number) =>
    device.tensor(
      Uint32Array.from({ length: 16 }, (_, i) => first + i),
      [1, 16],
    );
  const loss = () =>
    device.scope(async () => {
      const value = mean(await model.call(ids(0), { targets: ids(1) }));
      await value.backward();
      return value.item();
    });
  const losses = [];
  const saves = piecesIn(createHostStore());
  for (let step = 0; step < 2; step++) {
    losses.push(await loss());
    await optimizer.step();
    optimizer.zeroGrad();
  }
  seen.largestRead = 0;
  await saveCheckpoint(model, saves, { optimizer });
  expect(seen.largestRead).toBeLessThanOrEqual(LAYER_BYTES);
  await loadCheckpoint(model, saves, { optimizer });
  for (const { read } of (await lazyStateDict(model)).values()) {
    expect((await read()).byteLength).toBeLessThanOrEqual(LAYER_BYTES);
  }
  losses.push(await loss());
  expect(losses[2]).toBeLessThan(losses[0]!);
  expect(device.pool.peakInUseBytes).toBeLessThanOrEqual(BUDGET_BYTES);
  // A step brings one layer and the next, and takes back the one before.
  expect(model.hostMemory().peakStagingBytes).toBeLessThanOrEqual(3 * 4 * LAYER_BYTES);
  expect(seen.most).toBeLessThanOrEqual(3 * 4 * LAYER_BYTES);
  // The buffers of backward and of a step share this memory with activations that waited.
  expect(model.hostMemory().heldBytes).toBeLessThanOrEqual(12 * LAYER_BYTES);
  model.dispose();
});
