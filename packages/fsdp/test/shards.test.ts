// Saves that every rank writes and reads its own part of: any world size to any other, never whole on
// one rank.

import {
  type FsdpOptions,
  FullyShardedDataParallel,
  loadShards,
  saveShards,
  stateDict,
} from '@shardweave/fsdp';
import { Linear, Module, readSafetensors } from '@shardweave/nn';
import { deferredParameter } from '@shardweave/nn/flat';
import { createHostStore } from '@shardweave/shard-store';
import { Device, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { onRanks, type Rank } from './ranks.js';
import { adam, everything, Files, net, saved, train } from './saved-shards.js';
import { DIM, layer, Stack, weightsOf } from './scenarios.js';

const WORLD_SIZES = [1, 2, 3, 4, 8];

describe.each(WORLD_SIZES)('a save of %i ranks', (worldSize) => {
  it('loads at 1, 2, 3, 4 and 8, bit for bit, optimizer state and buffers too', async () => {
    const { files, whole } = await saved(worldSize);
    for (const other of WORLD_SIZES) {
      const [loaded] = await onRanks(other, async (rank) => {
        const device = new Device(rank.device.backend, { seed: 100 }); // other initial values
        const model = net({ ...rank, device });
        const optimizer = adam(model);
        const extra = await loadShards(model, files.reader(), { optimizer });
        expect(extra).toEqual({ step: 2 });
        return everything(model, optimizer);
      });
      expect(loaded, `loaded at ${other}`).toEqual(whole);
    }
  });
});

it('trains on as one process does, with other wrapping than it was saved with', async () => {
  const linears = ({ device, group }: Rank, options: Partial<FsdpOptions> = {}) => {
    const wrap = (module: Module) =>
      new FullyShardedDataParallel(module, { processGroup: group, ...options });
    const wide = new Linear(device, { inFeatures: DIM, outFeatures: 45 });
    return wrap(
      new Stack(device, [wide, wrap(new Linear(device, { inFeatures: 45, outFeatures: 9 }))]),
    );
  };
  const files = new Files();
  await onRanks(2, async (rank) => {
    const model = linears(rank, { flattenParameters: false });
    const optimizer = adam(model);
    await train(model, optimizer, { rank, steps: [0, 1] });
    await saveShards(model, files, { optimizer });
  });
  const [unbroken] = await onRanks(1, async (rank) => {
    const model = linears(rank);
    await train(model, adam(model), { rank, steps: [0, 1, 2, 3] });
    return weightsOf(model);
  });
  const [resumed] = await onRanks(3, async (rank) => {
    const model = linears({ ...rank, device: new Device(rank.device.backend, { seed: 100 }) });
    const optimizer = adam(model);
    await loadShards(model, files, { optimizer });
    await train(model, optimizer, { rank, steps: [2, 3] });
    return weightsOf(model);
  });
  for (const [name, values] of resumed!) {
    values.forEach((value, i) => {
      expect(Math.abs(value - unbroken!.get(name)![i]!)).toBeLessThanOrEqual(2e-6);
    });
  }
});

describe('what is moved', () => {
  /** One parameter of more than two parts of 4 MiB over two ranks. */
  class Big extends Module<[x: Tensor], Tensor> {
    constructor(device: Device, size: number) {
      super(device);
      const write = (into: Float32Array, start: number) => {
        for (let i = 0; i < into.length; i++) {
          into[i] = (start + i) % 65521;
        }
      };
      this.parameter('weight', deferredParameter(device, [size], { write }));
      this.parameter('bias', device.full([10], 3));
    }
    forward(x: Tensor): Tensor {
      return x;
    }
  }
  const SIZE = 2_600_001;

  it('no rank reads more than it owns, one part of 4 MiB at a time; devices do not grow', async () => {
    const [files, whole] = [new Files(), new Files()];
    const perRank = await onRanks(2, async ({ device, group }) => {
      const model = new FullyShardedDataParallel(new Big(device, SIZE), { processGroup: group });
      await model.initialize();
      const { live } = device.memory();
      device.ledger.resetPeak();
      const before = group.stats();
      await saveShards(model, files, { maxFileBytes: 2 ** 20 });
      await saveShards(model, whole);
      expect(device.memory().peak).toEqual(live);
      const { allGathers, bytesSent, gathers, broadcasts, sends } = group.stats();
      // Names and places travel, values don't.
      expect(bytesSent - before.bytesSent).toBeLessThan(10_000);
      expect(allGathers).toBeGreaterThan(before.allGathers);
      expect([gathers, broadcasts, sends]).toEqual([
        before.gathers,
        before.broadcasts,
        before.sends,
      ]);
      return live.total;
    });
    for (const [key, { byteLength }] of files.files) {
      if (key !== 'index.json') {
        expect(byteLength).toBeLessThanOrEqual(2 ** 20 + 512);
      }
    }
    expect(files.files.size).toBe(2 * 5 + 1); // 5.2 MB a rank

    for (const worldSize of [1, 3]) {
      const readers = await onRanks(worldSize, async ({ device, group, rank }) => {
        const module = new Big(device, SIZE);
        const model = new FullyShardedDataParallel(module, { processGroup: group });
        await model.initialize();
        const { live } = device.memory();
        device.ledger.resetPeak();
        const reader = whole.reader();
        await loadShards(model, reader);
        expect(device.memory().peak).toEqual(live);
        expect(reader.maxOpen).toBe(1);
        const [unit] = model.units;
        const first = rank * unit!.layout.shardLength;
        const values = new Float32Array((await unit!.readMaster()).buffer);
        const owned = Math.min(unit!.layout.shardLength, SIZE - first);
        expect(values.subarray(0, owned).every((value, i) => value === (first + i) % 65521)).toBe(
          true,
        );
        return reader;
      });
      const payload = readers.map(({ reads }) => reads.filter(({ key }) => key !== 'index.json'));
      const total = payload.flat().reduce((sum, { length }) => sum + length, 0);
      expect(total).toBe((SIZE + 10) * 4); // every element once
      const longest = Math.max(...payload.flat().map(({ length }) => length));
      if (worldSize === 1) {
        expect(longest).toBe(2 ** 22);
      }
      expect(longest).toBeLessThanOrEqual(2 ** 22);
      for (const reads of payload) {
        const own = reads.reduce((sum, { length }) => sum + length, 0);
        expect(own).toBeLessThanOrEqual(Math.ceil(perRank[0]! * 2) / worldSize + 512);
      }
    }
  });

  it('each rank writes one safetensors file, whole tensors under their own names', async () => {
    const { files, whole } = await saved(2);
    expect([...files.files.keys()].sort()).toEqual([
      'index.json',
      'rank-0-of-2.0.safetensors',
      'rank-1-of-2.0.safetensors',
    ]);
    const found = new Map(
      [...files.files].flatMap(([key, bytes]) =>
        key === 'index.json' ? [] : [...readSafetensors(bytes.slice()).tensors],
      ),
    );
    const { dtype, shape, data } = found.get('0.bias')!;
    expect([dtype, shape]).toEqual(['f32', [45]]);
    expect(`[45] ${Buffer.from(data).toString('base64')}`).toBe(whole.model.get('0.bias'));
    const cut = [...found.keys()].filter((name) => name.startsWith('1.weight'));
    expect(cut.sort()).toEqual(['1.weight[0:1024]', '1.weight[1024:1845]']);
  });
});

it('floats are converted: f32 masters into pure 16-bit ones of odd length, and back', async () => {
  const files = new Files();
  const make = (rank: Rank, dtype: 'f32' | 'bf16') => {
    const options = dtype === 'f32' ? {} : { computeDType: dtype };
    const linear = new Linear(rank.device, { inFeatures: 15, outFeatures: 11 }).to(dtype);
    return new FullyShardedDataParallel(linear, { processGroup: rank.group, ...options });
  };
  await onRanks(2, async (rank) => {
    const source = make(rank, 'f32');
    await saveShards(source, files);
    const wanted = await stateDict(source);
    const target = make({ ...rank, device: new Device(rank.device.backend, { seed: 5 }) }, 'bf16');
    await loadShards(target, files);
    const half = await stateDict(target);
    for (const [name, { data }] of wanted) {
      const rounded = new Float32Array(data.slice().buffer);
      const loaded = new Uint16Array(half.get(name)!.data.slice().buffer);
      loaded.forEach((bits, i) => {
        const value = new Float32Array(Uint32Array.of(bits << 16).buffer)[0]!;
        expect(Math.abs(value - rounded[i]!)).toBeLessThanOrEqual(Math.abs(rounded[i]!) / 256);
      });
    }
    const again = new Files();
    await saveShards(target, again);
    await rank.group.barrier();
    if (rank.rank === 0) {
      expect(again.index().tensors.weight!.dtype).toBe('bf16');
    }
  });
});

it('a ShardStore is a sink and a reader, and a prefix keeps saves apart', async () => {
  const store = createHostStore();
  await onRanks(2, async (rank) => {
    const model = net(rank);
    const before = await stateDict(model);
    await saveShards(model, store, { prefix: 'first/' });
    const optimizer = adam(model);
    await train(model, optimizer, { rank, steps: [0] });
    await saveShards(model, store, { prefix: 'second/' });
    await loadShards(model, store, { prefix: 'first/' });
    const after = await stateDict(model);
    for (const name of ['0.weight', '1.bias', '2.running_mean']) {
      expect(after.get(name)).toEqual(before.get(name));
    }
  });
  await store.close();
});

it('replicas are written once', async () => {
  const files = new Files();
  await onRanks(4, async (rank) => {
    const processGroup = await rank.group.split(Math.floor(rank.rank / 2));
    const replicateGroup = await rank.group.split(rank.rank % 2);
    const model = new FullyShardedDataParallel(layer(rank.device), {
      processGroup,
      replicateGroup,
    });
    const sink = rank.rank < 2 ? files : new Files();
    await saveShards(model, sink);
    if (rank.rank >= 2) {
      expect(sink.files.size).toBe(0);
    }
    await rank.group.barrier();
    const before = await stateDict(model);
    await loadShards(model, files);
    expect(await stateDict(model)).toEqual(before);
  });
});

it('what ranks hold for themselves comes back to each', async () => {
  const files = new Files();
  const make = async (rank: Rank, seed: number) => {
    const device = new Device(rank.device.backend, { seed });
    const alone = await rank.group.split(rank.rank);
    const expert = new FullyShardedDataParallel(layer(device), { processGroup: alone });
    return new FullyShardedDataParallel(new Stack(device, [layer(device), expert]), {
      processGroup: rank.group,
    });
  };
  const values = await onRanks(3, async (rank) => {
    const model = await make(rank, rank.rank);
    await saveShards(model, files);
    await rank.group.barrier();
    const before = await stateDict(model);
    const other = await make(rank, 50);
    await loadShards(other, files);
    expect(await stateDict(other)).toEqual(before);
    return before.get('1.weight')!.data;
  });
  expect(values[0]).not.toEqual(values[1]);
  await onRanks(2, async (rank) => {
    const model = await make(rank, 60); // fewer ranks: each its own
    await loadShards(model, files);
    expect((await stateDict(model)).get('1.weight')!.data).toEqual(values[rank.rank]);
  });
  await onRanks(4, async (rank) => {
    const loading = loadShards(await make(rank, 70), files);
    if (rank.rank === 3) {
      await expect(loading).rejects.toMatchObject({ missing: ['1.weight@3', '1.bias@3'] });
    } else {
      await expect(loading).rejects.toThrow('rank 3/4 failed');
    }
  });
});

it("a load brings the optimizer's options back, group by group", async () => {
  const files = new Files();
  await onRanks(2, async (rank) => {
    const model = net(rank);
    const optimizer = adam(model);
    optimizer.groups[1]!.lr = 0.125;
    await saveShards(model, files, { optimizer });
    const other = adam(model);
    await loadShards(model, files.reader(), { optimizer: other });
    expect(other.groups.map(({ lr, weightDecay }) => [lr, weightDecay])).toEqual([
      [1e-2, 0.1],
      [0.125, 0],
    ]);
  });
});
