// This trains over stores that fail for good from one call on, call after call:
// `node --unhandled-rejections=strict failing-store-process.mjs EVERY` for each EVERY-th call of an
// offloaded model and of a sharded one. It prints what is wrong, and last how many runs there were.
// An error that nobody handles ends it before that. failing-store.test.ts bundles and starts it.

import { createMemoryGroup } from '@shardweave/collectives';
import { FullyShardedDataParallel } from '@shardweave/fsdp';
import { gradNorm, Linear, type Module, Sequential, Sgd } from '@shardweave/nn';
import { OffloadModel } from '@shardweave/offload';
import { createHostStore, type ShardStore } from '@shardweave/shard-store';
import { Device, mean, square, type Tensor } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';

const [every] = process.argv.slice(2);
const backend = await createCpuBackend({ threads: 1 });

/** A store whose calls fail from call `first` on, and what it had at each of its commits. */
interface Watched {
  readonly store: ShardStore;
  readonly generations: string[];
  numCalls: number;
}

function watched(first: number): Watched {
  const target = createHostStore();
  const found: Watched = { numCalls: 0, generations: [], store: target };
  const call = async <T>(body: () => Promise<T>) => {
    found.numCalls += 1;
    if (found.numCalls >= first) {
      throw new Error(`no disk at call ${first}`);
    }
    return body();
  };
  const calls: Partial<ShardStore> = {
    read: (...args) => call(() => target.read(...args)),
    write: (...args) => call(() => target.write(...args)),
    delete: (key) => call(() => target.delete(key)),
    withdraw: (key) => call(() => target.withdraw(key)),
    commit: () =>
      call(async () => {
        await target.commit();
        found.generations.push(await textOf(target));
      }),
  };
  const store = new Proxy(target, {
    get: (_, name) => {
      const own = Reflect.get(calls, name) ?? Reflect.get(target, name, target);
      return typeof own === 'function' && !(name in calls) ? own.bind(target) : own;
    },
  });
  return Object.assign(found, { store });
}

/** All values of a store as text, but for gradients, which no later process takes. */
async function textOf(store: ShardStore): Promise<string> {
  const keys = store.keys().filter((key) => !key.endsWith('/gradient'));
  const values = keys.sort().map(async (key) => {
    const bytes = new Uint8Array(store.byteLength(key)!);
    await store.read(key, bytes);
    return `${key} ${Buffer.from(bytes).toString('hex')}`;
  });
  return (await Promise.all(values)).join('\n');
}

const layersOf = (device: Device): Module[] =>
  [0, 1].map(() => new Linear(device, { inFeatures: 4, outFeatures: 4 }));

/** Trains two steps until a call fails; every call is awaited, and its error is caught. */
async function train(model: Module, norm: () => Promise<unknown>, seed: number): Promise<boolean> {
  const { device } = model;
  const optimizer = new Sgd(model.parameters(), { lr: 0.1, momentum: 0.9 });
  try {
    for (let step = 0; step < 2; step++) {
      await device.scope(async () => {
        const data = Float32Array.from({ length: 8 }, (_, i) => Math.sin(i + seed + step));
        const output = (await model.call(device.tensor(data, [2, 4]))) as Tensor;
        await mean(square(output)).backward();
      });
      await norm();
      await optimizer.step();
      optimizer.zeroGrad();
    }
    return true;
  } catch {
    return false;
  }
}

async function offloaded(first: number): Promise<readonly Watched[]> {
  const found = watched(first);
  const device = new Device(backend, { seed: 1 });
  const model = new OffloadModel(new Sequential(device, layersOf(device)), {
    store: found.store,
    numSlices: 2,
  });
  await train(model, () => gradNorm(model.parameters()), 0);
  return [found];
}

async function sharded(first: number): Promise<readonly Watched[]> {
  const stores = [watched(Number.POSITIVE_INFINITY), watched(first)];
  await Promise.all(
    createMemoryGroup(2).map(async (processGroup, rank) => {
      const device = new Device(backend, { seed: 1 });
      const offloadConfig = { store: stores[rank]!.store };
      const wrap = (module: Module, name: string) =>
        new FullyShardedDataParallel(module, { processGroup, offloadConfig, name });
      const layers = layersOf(device).map((layer, i) => wrap(layer, `layer ${i}`));
      const model = wrap(new Sequential(device, layers), 'root') as FullyShardedDataParallel;
      await train(model, () => gradNorm(model), rank);
      await processGroup.close();
    }),
  );
  return stores;
}

for (const [kind, run] of Object.entries({ offload: offloaded, fsdp: sharded })) {
  const expected = await run(Number.POSITIVE_INFINITY);
  const { numCalls } = expected.at(-1)!;
  let numRuns = 0;
  for (let first = 1; first <= numCalls; first += Number(every)) {
    const found = await run(first);
    await new Promise((resolve) => setImmediate(resolve)); // unhandled rejections are told before it
    numRuns += 1;
    const isFailed = found.at(-1)!.numCalls >= first;
    const isWhole = found.every(({ generations }, rank) =>
      generations.every((text, i) => text === expected[rank]!.generations[i]),
    );
    if (!isFailed || !isWhole) {
      console.log(`${kind}, call ${first}: expected a failure and the generations of a whole run`);
    }
  }
  console.log(`${kind}: ${numRuns} of ${numCalls} calls`);
}
await backend.dispose();
