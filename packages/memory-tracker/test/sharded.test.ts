// These tests check what exactly a tracker sees of a sharded model: the bytes gathered for each
// layer, full parameters at the layer's samples, and the same order and sizes as on one process.

import { createMemoryGroup, type ProcessGroup } from '@shardweave/collectives';
import { type FsdpOptions, FullyShardedDataParallel } from '@shardweave/fsdp';
import { LayerMemoryTracker, type MemorySample } from '@shardweave/memory-tracker';
import { checkpoint, Linear, type Module, Sequential } from '@shardweave/nn';
import { Device, mean } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';

const NUM_LAYERS = 3;
const ROWS = 2;
const PLAIN = 440; // These are 10 x 10 weights and 10 biases in f32.
// fairscale expects 440 bytes for each layer. Here weights, biases and shards lie at multiples of
// 128 elements: 256 elements over two ranks, 512 over four.
const GATHERED = { 2: 4 * 256, 4: 4 * 512 };

type Build = (device: Device, group: ProcessGroup) => Module;

function layers(device: Device, wrap: (layer: Module) => Module = (layer) => layer): Sequential {
  const one = () => wrap(new Linear(device, { inFeatures: 10, outFeatures: 10 }));
  return new Sequential(device, Array.from({ length: NUM_LAYERS }, one));
}

/** Returns a sharded model with an instance for each layer and a root without parameters. */
function sharded(options: Partial<FsdpOptions> = {}, inside: (m: Module) => Module = (m) => m) {
  return (device: Device, processGroup: ProcessGroup): Module => {
    // Without prefetch each gather belongs to the layer that waits for it.
    const all = { processGroup, gatherCapBytes: 0, ...options };
    const wrap = (layer: Module) => new FullyShardedDataParallel(inside(layer), all);
    return new FullyShardedDataParallel(layers(device, wrap), all);
  };
}

/** Returns the samples of the second step on each rank. */
async function traced(worldSize: number, build: Build): Promise<(readonly MemorySample[])[]> {
  const backend = createReferenceBackend();
  const groups = createMemoryGroup(worldSize);
  try {
    return await Promise.all(
      groups.map(async (group) => {
        const device = new Device(backend, { seed: 2 });
        const model = build(device, group);
        // What initialize itself gathers belongs to no layer.
        if (model instanceof FullyShardedDataParallel) {
          await model.initialize();
        }
        using tracker = new LayerMemoryTracker(model, { gathers: [group] });
        for (let step = 0; step < 2; step++) {
          tracker.clear();
          await device.scope(async () => {
            const loss = mean(await model.call(device.full([ROWS, 10], 0.5)));
            await loss.backward();
          });
          model.zeroGrad();
        }
        return tracker.trace().samples;
      }),
    );
  } finally {
    for (const group of groups) {
      await group.close();
    }
    await backend.dispose();
  }
}

const ORDER = ['forward 0', 'forward 1', 'forward 2', 'backward 2', 'backward 1', 'backward 0'];

function orderOf(samples: readonly MemorySample[]): string[] {
  return samples.map(({ phase, name }) => `${phase} ${name}`);
}

describe.each([2, 4] as const)('over %i ranks', (worldSize) => {
  const bytes = GATHERED[worldSize];

  it('each layer gathers its own bytes, in forward and again in backward', async () => {
    for (const samples of await traced(worldSize, sharded())) {
      expect(orderOf(samples)).toEqual(ORDER);
      expect(samples.map(({ gatheredBytes }) => gatheredBytes)).toEqual(Array(6).fill(bytes));
      const totals = samples.map(({ totalGatheredBytes }) => totalGatheredBytes);
      expect(totals).toEqual([6, 7, 8, 9, 10, 11].map((before) => (before + 1) * bytes));
      // Only one layer is present at a time, at its own samples.
      expect(samples.map(({ liveBytes }) => liveBytes.gathered)).toEqual(Array(6).fill(bytes));
    }
  });

  it('units that do not reshard are gathered in forward only, and stay', async () => {
    const build = sharded({ reshardAfterForward: false });
    for (const samples of await traced(worldSize, build)) {
      expect(samples.map(({ gatheredBytes }) => gatheredBytes)).toEqual([
        ...Array(3).fill(bytes),
        ...Array(3).fill(0),
      ]);
      const present = samples.map(({ liveBytes }) => liveBytes.gathered / bytes);
      expect(present).toEqual([1, 2, 3, 3, 2, 1]); // Backward frees each layer after it.
    }
  });

  it('parameters in 16 bits take half of them', async () => {
    const build = sharded({ mixedPrecision: true, computeDType: 'bf16' });
    for (const samples of await traced(worldSize, build)) {
      expect(samples.map(({ gatheredBytes }) => gatheredBytes)).toEqual(Array(6).fill(bytes / 2));
      expect(samples.map(({ parameterBytes }) => parameterBytes)).toEqual(Array(6).fill(PLAIN / 2));
    }
  });

  it('prefetch leaves the sums of a forward and a backward the same', async () => {
    const build = sharded({ gatherCapBytes: 2 ** 20 });
    for (const samples of await traced(worldSize, build)) {
      const sum = (phase: string): number =>
        samples
          .filter((sample) => sample.phase === phase)
          .reduce((total, { gatheredBytes }) => total + gatheredBytes, 0);
      expect([sum('forward'), sum('backward')]).toEqual([3 * bytes, 3 * bytes]);
    }
  });

  it('a layer checkpointed inside its instance is gathered twice, around it three times', async () => {
    const inside = await traced(worldSize, sharded({}, checkpoint));
    const around = await traced(worldSize, (device, processGroup) => {
      const all = { processGroup, gatherCapBytes: 0 };
      const wrap = (layer: Module) => checkpoint(new FullyShardedDataParallel(layer, all));
      return new FullyShardedDataParallel(layers(device, wrap), all);
    });
    const again = [2, 1, 0].flatMap((layer) => [`recompute ${layer}`, `backward ${layer}`]);
    for (const [traces, numGathers] of [
      [inside, 2],
      [around, 3],
    ] as const) {
      for (const samples of traces) {
        expect(orderOf(samples)).toEqual([...ORDER.slice(0, 3), ...again]);
        const { totalGatheredBytes } = samples.at(-1)!;
        expect(totalGatheredBytes).toBe(2 * numGathers * NUM_LAYERS * bytes);
      }
    }
  });
});

it('order, parameters and activations are those of one process', async () => {
  const [plain] = await traced(1, (device) => layers(device));
  expect(orderOf(plain!)).toEqual(ORDER);
  expect(plain!.map(({ parameterBytes }) => parameterBytes)).toEqual(Array(6).fill(PLAIN));
  expect(plain!.every(({ totalGatheredBytes }) => totalGatheredBytes === 0)).toBe(true);
  const sizesOf = (samples: readonly MemorySample[]) =>
    samples.map(({ name, type, phase, parameterBytes, activationBytes }) => {
      return { name, type, phase, parameterBytes, activationBytes };
    });
  for (const samples of await traced(2, sharded())) {
    expect(sizesOf(samples)).toEqual(sizesOf(plain!));
    expect(samples[0]!.activationBytes).toBe(4 * ROWS * 10);
  }
});
