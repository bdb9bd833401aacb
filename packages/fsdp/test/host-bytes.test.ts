// In a step, the host's buffers for gathers and reductions are used again and again, and gathered
// copies that a write has made stale are freed at once.

import { RankSum } from '@shardweave/dtypes';
import type { FsdpOptions, FullyShardedDataParallel } from '@shardweave/fsdp';
import { loadLocalStateDict, localStateDict, summonFullParams } from '@shardweave/fsdp/fairscale';
import { loadStateDict, Sgd, stateDict } from '@shardweave/nn';
import { Device } from '@shardweave/tensor-core';
import { describe, expect, it, vi } from 'vitest';
import {
  inputs,
  layer,
  onRanks,
  type Rank,
  rowsOf,
  Stack,
  trainOnce,
} from '../../../tooling/test-kit/index.ts';
import { lateBackend, withoutHostMemory } from './support/late-backend.js';
import { wrapIn } from './support/sharding.js';

function net({ device, group }: Rank, options: Partial<FsdpOptions> = {}) {
  const wrap = wrapIn({ group }, options);
  return wrap(new Stack(device, [wrap(layer(device)), wrap(layer(device)), layer(device)]));
}

describe.each<[Partial<FsdpOptions>, isHostMemory: boolean]>([
  [{}, true],
  [{}, false],
  [{ bucketCapMb: 0 }, true],
  [{ reshardAfterForward: false }, true],
  [{ mixedPrecision: true, computeDType: 'bf16' }, true],
  [{ moveParamsToCpu: true }, true],
])(
  'host buffers of steps with %j, and memory that the host can use: %j',
  (options, isHostMemory) => {
    it('all come back after each step, and there are as many as are in use at once', () =>
      onRanks(2, async ({ device: { backend }, ...rank }) => {
        const own = isHostMemory ? backend : withoutHostMemory(backend);
        const model = net({ ...rank, device: new Device(own, { seed: 7 }) }, options);
        const optimizer = new Sgd(model.parameters(), { lr: 0.1 });
        for (let step = 0; step < 10; step++) {
          const micro = (k: number) => trainOnce(model, rowsOf(rank), 2 * step + k);
          await model.noSync(() => micro(0));
          await micro(1);
          await optimizer.step();
          optimizer.zeroGrad();
          expect(model.units[0]!.links!.hostBuffers.takenBytes).toBe(0);
        }
        const { numMade } = model.units[0]!.links!.hostBuffers;
        // Where all of them lie in the device's own memory there are none.
        expect(numMade > 0).toBe(options.bucketCapMb !== 0);
        // A unit needs at most a shard and a whole on their way to be gathered, and two to be
        // reduced. Timing decides how many units do so at once; thirty gathers or more without
        // reuse would need more buffers than this.
        expect(numMade).toBeLessThanOrEqual(4 * model.instances().length);
      }));
  },
);

it.each<[Partial<FsdpOptions>, isHostMemory: boolean]>([
  [{}, true],
  [{}, false],
  [{ moveParamsToCpu: true }, true],
])(
  'a forward that fails with gathers ahead of it gives their buffers back, with %j %j',
  (options, isHostMemory) =>
    onRanks(2, async (rank) => {
      const { group } = rank;
      const { backend } = rank.device;
      const device = new Device(isHostMemory ? backend : withoutHostMemory(backend), { seed: 7 });
      let isFailing = false;
      const wrap = wrapIn({ group }, options);
      const layers = [wrap(layer(device)), wrap(layer(device)), layer(device)];
      layers[0]!.aroundForward({
        before: () => {
          if (isFailing) {
            throw new Error('no forward');
          }
        },
      });
      const model = wrap(new Stack(device, layers));
      const rows = rowsOf(rank);
      await trainOnce(model, rows); // This step learns the order in which units are gathered ahead.
      isFailing = true;
      await expect(trainOnce(model, rows)).rejects.toThrow('no forward');
      isFailing = false;
      await trainOnce(model, rows);
      expect(model.units[0]!.links!.hostBuffers.takenBytes).toBe(0);
    }),
);

it.each<Partial<FsdpOptions>>([{}, { gatherCapBytes: 1 }, { moveParamsToCpu: true }])(
  'gathered bytes that wait for a late device are few, however many units are ahead, with %j',
  (options) =>
    onRanks(2, async ({ device: { backend }, group, rank }) => {
      let most = 0;
      const late = lateBackend(backend, {
        numTurns: 5,
        slow: () => true,
        fewBytes: 0,
        isHostMemory: false,
        onWaitingBytes: (bytes) => {
          most = Math.max(most, bytes);
        },
      });
      const device = new Device(late, { seed: 7 });
      const wrap = wrapIn({ group }, options);
      const layers = Array.from({ length: 12 }, () => wrap(layer(device)));
      const model = wrap(new Stack(device, layers));
      const forward = () =>
        device.noGrad(() =>
          device.scope(async () => {
            await model.call(inputs(device, { first: rank, count: 1 }));
          }),
        );
      await forward(); // This makes the shards and learns the order.
      most = 0;
      await forward();
      const units = model.instances().flatMap((instance) => instance.units);
      expect(units.length).toBe(12);
      const { wholeBytes } = units[0]!.full;
      // One unit is gathered, beside the few bytes of the inputs.
      expect(most).toBeGreaterThanOrEqual(wholeBytes);
      expect(most).toBeLessThan(2 * wholeBytes);
    }),
);

describe('gathered copies that instances keep', () => {
  const writes: Record<string, (model: FullyShardedDataParallel) => Promise<unknown>> = {
    summonFullParams: (model) => summonFullParams(model, () => undefined),
    'summonFullParams, volatile': (model) =>
      summonFullParams(model, () => undefined, { volatile: true }),
    loadStateDict: async (model) => loadStateDict(model, await stateDict(model)),
    loadLocalStateDict: async (model) => loadLocalStateDict(model, await localStateDict(model)),
  };

  it.each(Object.keys(writes))('are freed by %s', (name) =>
    onRanks(2, async (rank) => {
      const { device } = rank;
      const model = net(rank, { reshardAfterForward: false });
      const x = device.tensor(new Float32Array(6), [1, 6]).keep();
      await device.noGrad(() => device.scope(async () => void (await model.call(x))));
      expect(device.memory().live.gathered).toBeGreaterThan(0);
      await writes[name]!(model);
      expect(device.memory().live.gathered).toBe(0);
      x.dispose();
    }),
  );
});

it('a shard that is read where it rests is written once nobody reads it', () =>
  onRanks(2, async (rank) => {
    const model = net(rank);
    await trainOnce(model, rowsOf(rank));
    const { flat, values } = model.units[0]!;
    const bytes = (await values.read()).fill(1);
    const reader = flat.storage.openReader(); // as a save has one
    const loan = flat.device.pool.blocks.lend(flat.storage)!;
    const written = values.write(bytes);
    expect(await loan.bytes).not.toEqual(bytes);
    loan.close();
    await flat.device.synchronize();
    expect(await reader.read(0, bytes.byteLength)).not.toEqual(bytes);
    reader.close();
    await written;
    expect(await values.read()).toEqual(bytes);
  }));

it.each([2, 3])(
  'the thread of %j ranks copies only the parts of others as they gather',
  async (n) => {
    const set = vi.spyOn(Object.getPrototypeOf(Uint8Array.prototype) as Uint8Array, 'set');
    const gathered = await onRanks(n, async (rank) => {
      const model = net(rank);
      const { full, flat, values } = model.units[0]!;
      await trainOnce(model, rowsOf(rank)); // This opens the links and begins the pool.
      await rank.group.barrier();
      set.mockClear();
      await full.finishLoad(full.startLoad());
      await rank.group.barrier();
      const sizes = set.mock.calls.map(([bytes]) => bytes.length);
      const copied = sizes.filter((size) => size >= flat.size).reduce((sum, size) => sum + size, 0);
      await rank.group.barrier();
      const whole = await full.storage.read();
      const own = await values.read();
      full.drop();
      return { copied, shardBytes: own.byteLength, own, whole };
    });
    set.mockRestore();
    for (const { copied, shardBytes, whole } of gathered) {
      expect(copied).toBe(n * (n - 1) * shardBytes);
      expect(whole).toEqual(Buffer.concat(gathered.map(({ own }) => own)));
    }
  },
);

it.each([
  [2, {}, false],
  [3, {}, true],
  [2, { mixedPrecision: true, computeDType: 'bf16' }, true],
] as const)(
  'the thread of %j ranks with %j adds gradients up: %j',
  async (n, options, isAdding) => {
    const sums = vi.spyOn(RankSum.prototype, 'reduce');
    await onRanks(n, async (rank) => {
      const model = net(rank, { bucketCapMb: 0, ...options });
      await trainOnce(model, rowsOf(rank));
    });
    expect(sums.mock.calls.length > 0).toBe(isAdding);
    sums.mockRestore();
  },
);
