// Every rank writes and reads its own part of these saves: from any world size to any other, and
// never whole on one rank.

import { openSave, PIECE_BYTES } from '@shardweave/checkpoint';
import { type FsdpOptions, FullyShardedDataParallel } from '@shardweave/fsdp';
import { Linear, loadCheckpoint, Module, saveCheckpoint, stateDict } from '@shardweave/nn';
import { deferredParameter, hostRecipe } from '@shardweave/nn/flat';
import { Device, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  DIM,
  expectClose,
  layer,
  onRanks,
  type Rank,
  Stack,
  weightsOf,
} from '../../../tooling/test-kit/index.ts';
import { adam, counting, everything, net, place, saved, train } from './support/saved-models.js';
import { wrapIn } from './support/sharding.js';

const WORLD_SIZES = [1, 2, 3, 4, 8];

describe.each(WORLD_SIZES)('a save of %i ranks', (worldSize) => {
  it('loads at 1, 2, 3, 4 and 8, bit for bit, optimizer state and buffers too', async () => {
    const { files, whole } = await saved(worldSize);
    for (const other of WORLD_SIZES) {
      const [loaded] = await onRanks(other, async (rank) => {
        // The initial values are other ones.
        const device = new Device(rank.device.backend, { seed: 100 });
        const model = net({ ...rank, device });
        const optimizer = adam(model);
        const extra = await loadCheckpoint(model, files, { optimizer });
        expect(extra).toEqual({ step: 2 });
        return everything(model, optimizer);
      });
      expect(loaded, `loaded at ${other}`).toEqual(whole);
    }
  });
});

it('trains on as one process does, with other wrapping than it was saved with', async () => {
  const linears = ({ device, group }: Rank, options: Partial<FsdpOptions> = {}) => {
    const wrap = wrapIn({ group }, options);
    const wide = new Linear(device, { inFeatures: DIM, outFeatures: 45 });
    return wrap(
      new Stack(device, [wide, wrap(new Linear(device, { inFeatures: 45, outFeatures: 9 }))]),
    );
  };
  const files = place();
  await onRanks(2, async (rank) => {
    const model = linears(rank, { flattenParameters: false });
    const optimizer = adam(model);
    await train(model, optimizer, { rank, steps: [0, 1] });
    await saveCheckpoint(model, files, { optimizer });
  });
  const [unbroken] = await onRanks(1, async (rank) => {
    const model = linears(rank);
    await train(model, adam(model), { rank, steps: [0, 1, 2, 3] });
    return weightsOf(model);
  });
  const [resumed] = await onRanks(3, async (rank) => {
    const model = linears({ ...rank, device: new Device(rank.device.backend, { seed: 100 }) });
    const optimizer = adam(model);
    await loadCheckpoint(model, files, { optimizer });
    await train(model, optimizer, { rank, steps: [2, 3] });
    return weightsOf(model);
  });
  expectClose(resumed!, unbroken!);
});

describe('what is moved', () => {
  /** This module has one parameter, of more than two parts of 4 MiB over two ranks. */
  class Big extends Module<[x: Tensor], Tensor> {
    constructor(device: Device, size: number) {
      super(device);
      const recipe = hostRecipe((values, start) => {
        for (let i = 0; i < values.length; i++) {
          values[i] = (start + i) % 65521;
        }
      });
      this.parameter('weight', deferredParameter(device, [size], recipe));
      this.parameter('bias', device.full([10], 3));
    }
    forward(x: Tensor): Tensor {
      return x;
    }
  }
  const SIZE = 2_600_001;

  it('no rank writes or reads more than it owns, 1 MiB at a time; devices do not grow', async () => {
    const files = place();
    const perRank = await onRanks(2, async ({ device, group }) => {
      const model = new FullyShardedDataParallel(new Big(device, SIZE), { processGroup: group });
      await model.initialize();
      const { live } = device.memory();
      device.ledger.resetPeak();
      const before = group.stats();
      await saveCheckpoint(model, files);
      expect(device.memory().peak).toEqual(live);
      const { allGathers, bytesSent, gathers, broadcasts, sends } = group.stats();
      // Names and places travel between ranks, and values don't.
      expect(bytesSent - before.bytesSent).toBeLessThan(10_000);
      expect(allGathers).toBeGreaterThan(before.allGathers);
      expect([gathers, broadcasts, sends]).toEqual([
        before.gathers,
        before.broadcasts,
        before.sends,
      ]);
      return live.total;
    });
    for (const file of await files.files()) {
      expect(await files.byteLength(file)).toBeLessThanOrEqual(perRank[0]!);
    }
    expect(await files.files()).toHaveLength(2 + 1);

    for (const worldSize of [1, 3]) {
      const readers = await onRanks(worldSize, async ({ device, group, rank }) => {
        const module = new Big(device, SIZE);
        const model = new FullyShardedDataParallel(module, { processGroup: group });
        await model.initialize();
        const { live } = device.memory();
        device.ledger.resetPeak();
        const reader = counting(files);
        await loadCheckpoint(model, reader);
        expect(device.memory().peak).toEqual(live);
        expect(reader.maxOpen).toBe(1);
        const [unit] = model.units;
        const first = rank * unit!.layout.shardLength;
        const values = new Float32Array((await unit!.values.read()).buffer);
        const owned = Math.min(unit!.layout.shardLength, SIZE - first);
        expect(values.subarray(0, owned).every((value, i) => value === (first + i) % 65521)).toBe(
          true,
        );
        return reader;
      });
      for (const { reads } of readers) {
        const payload = reads.filter(({ file }) => file !== 'index.json');
        const total = payload.reduce((sum, { length }) => sum + length, 0);
        expect(Math.max(...payload.map(({ length }) => length))).toBe(PIECE_BYTES);
        // Every element is read twice, to check it and to load it, with a piece at either end of
        // the rank's part.
        const most = 2 * (Math.ceil((perRank[0]! * 2) / worldSize) + 2 * PIECE_BYTES);
        expect(total).toBeLessThanOrEqual(worldSize === 1 ? 2 * (SIZE + 10) * 4 : most);
      }
    }
  });

  it('each rank has one file, and tensors lie in it under their own names', async () => {
    const { files, whole } = await saved(2);
    const names = (await files.files()).map((name) => name.replace(/^save-\d+-\w+-/, ''));
    expect(names.sort()).toEqual(['index.json', 'rank-0-of-2.pieces', 'rank-1-of-2.pieces']);
    const { tensors } = await openSave(files);
    const found = [...tensors.values()];
    const bias = found.find(({ name, kind }) => name === '0.bias' && kind === 'parameter')!;
    expect([bias.dtype, bias.shape]).toEqual(['f32', [45]]);
    const [{ file, byteOffset }] = bias.pieces as [(typeof bias.pieces)[0]];
    const data = new Uint8Array(45 * 4);
    await files.read(file, data, { offset: byteOffset });
    expect(`[45] ${Buffer.from(data).toString('base64')}`).toBe(whole.model['0.bias']);
    const cut = found.find(({ name, kind }) => name === '1.weight' && kind === 'parameter')!;
    expect(cut.pieces.map(({ start, end }) => [start, end])).toEqual([
      [0, 1024],
      [1024, 1845],
    ]);
  });
});

it('floats are converted: f32 masters into pure 16-bit ones of odd length, and back', async () => {
  const files = place();
  const make = (rank: Rank, dtype: 'f32' | 'bf16') => {
    const options = dtype === 'f32' ? {} : { computeDType: dtype };
    const linear = new Linear(rank.device, { inFeatures: 15, outFeatures: 11 }).to(dtype);
    return new FullyShardedDataParallel(linear, { processGroup: rank.group, ...options });
  };
  await onRanks(2, async (rank) => {
    const source = make(rank, 'f32');
    await saveCheckpoint(source, files);
    const wanted = await stateDict(source);
    const target = make({ ...rank, device: new Device(rank.device.backend, { seed: 5 }) }, 'bf16');
    await loadCheckpoint(target, files);
    const half = await stateDict(target);
    for (const [name, { data }] of wanted) {
      const rounded = new Float32Array(data.slice().buffer);
      const loaded = new Uint16Array(half.get(name)!.data.slice().buffer);
      loaded.forEach((bits, i) => {
        const value = new Float32Array(Uint32Array.of(bits << 16).buffer)[0]!;
        expect(Math.abs(value - rounded[i]!)).toBeLessThanOrEqual(Math.abs(rounded[i]!) / 256);
      });
    }
    const again = place();
    await saveCheckpoint(target, again);
    await rank.group.barrier();
    if (rank.rank === 0) {
      const found = [...(await openSave(again)).tensors.values()];
      expect(found.map(({ name, dtype }) => [name, dtype])).toContainEqual(['weight', 'bf16']);
    }
  });
});

it('replicas are written once', async () => {
  const files = place();
  await onRanks(4, async (rank) => {
    const processGroup = await rank.group.split(Math.floor(rank.rank / 2));
    const replicateGroup = await rank.group.split(rank.rank % 2);
    const model = new FullyShardedDataParallel(layer(rank.device), {
      processGroup,
      replicateGroup,
    });
    const sink = rank.rank < 2 ? files : place();
    await saveCheckpoint(model, sink);
    if (rank.rank >= 2) {
      expect(await sink.files()).toEqual([]);
    }
    await rank.group.barrier();
    const before = await stateDict(model);
    await loadCheckpoint(model, files);
    expect(await stateDict(model)).toEqual(before);
  });
});

it('what ranks hold for themselves comes back to each', async () => {
  const files = place();
  const make = async (rank: Rank, seed: number) => {
    const device = new Device(rank.device.backend, { seed });
    const alone = await rank.group.split(rank.rank);
    const expert = new FullyShardedDataParallel(layer(device), { processGroup: alone });
    return wrapIn(rank)(new Stack(device, [layer(device), expert]));
  };
  const values = await onRanks(3, async (rank) => {
    const model = await make(rank, rank.rank);
    await saveCheckpoint(model, files);
    await rank.group.barrier();
    const before = await stateDict(model);
    const other = await make(rank, 50);
    await loadCheckpoint(other, files);
    expect(await stateDict(other)).toEqual(before);
    return before.get('1.weight')!.data;
  });
  expect(values[0]).not.toEqual(values[1]);
  await onRanks(2, async (rank) => {
    const model = await make(rank, 60); // With fewer ranks, each still gets its own expert.
    await loadCheckpoint(model, files);
    expect((await stateDict(model)).get('1.weight')!.data).toEqual(values[rank.rank]);
  });
  await onRanks(4, async (rank) => {
    const loading = loadCheckpoint(await make(rank, 70), files);
    if (rank.rank === 3) {
      await expect(loading).rejects.toMatchObject({ missing: ['1.weight@3', '1.bias@3'] });
    } else {
      await expect(loading).rejects.toThrow('rank 3/4 failed');
    }
  });
});

it("a load brings the optimizer's options back, group by group", async () => {
  const files = place();
  await onRanks(2, async (rank) => {
    const model = net(rank);
    const optimizer = adam(model);
    optimizer.groups[1]!.lr = 0.125;
    await saveCheckpoint(model, files, { optimizer });
    const other = adam(model);
    await loadCheckpoint(model, files, { optimizer: other });
    expect(other.groups.map(({ lr, weightDecay }) => [lr, weightDecay])).toEqual([
      [1e-2, 0.1],
      [0.125, 0],
    ]);
  });
});
