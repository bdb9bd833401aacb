// These tests save and load the parameters of a sharded module.

import { FullyShardedDataParallel } from '@shardweave/fsdp';
import { localStateDict, summonFullParams } from '@shardweave/fsdp/fairscale';
import {
  type ElementRange,
  Gpt2,
  type LazyTensor,
  loadStateDict,
  Module,
  type StateDict,
  StateDictError,
  type StateEntry,
  stateDict,
} from '@shardweave/nn';
import { deferredParameter, hostRecipe } from '@shardweave/nn/flat';
import { Device, type Shape, type Tensor } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';
import {
  forwardBackward,
  layer,
  onRanks,
  Stack,
  TINY,
  trainOnce,
} from '../../../tooling/test-kit/index.ts';
import { shardedWithBuffers, withBuffers } from './support/batch-norm-model.js';
import { lateBackend } from './support/late-backend.js';
import { shardedGpt2, wrapIn } from './support/sharding.js';

/** Returns the names, shapes and bytes of the module from which the sharded ones start. */
async function bareState(): Promise<StateDict> {
  const device = new Device(createReferenceBackend());
  const model = new Gpt2(device, TINY, { seed: 3 });
  const entries: StateDict = new Map();
  for (const [name, tensor] of model.namedParameters()) {
    entries.set(name, { dtype: 'f32', shape: tensor.shape, data: await tensor.toBytes() });
  }
  return entries;
}

function isSameBytes(a: StateDict, b: StateDict): boolean {
  return (
    [...a.keys()].join() === [...b.keys()].join() &&
    [...a].every(([name, { data }]) => Buffer.compare(data, b.get(name)!.data) === 0)
  );
}

describe.each([1, 2, 3, 8])('world size %i', (worldSize) => {
  it('stateDict equals the bare module, bit for bit, also in mixed precision', async () => {
    const bare = await bareState();
    for (const fsdp of [{}, { mixedPrecision: true, computeDType: 'bf16' as const }]) {
      await onRanks(worldSize, async (rank) => {
        const { model } = shardedGpt2(rank, { fsdp });
        expect(isSameBytes(await stateDict(model), bare)).toBe(true);
      });
    }
  });

  it('what was saved at one world size loads at another', async () => {
    const [saved] = await onRanks(2, async (rank) => {
      const { model } = shardedGpt2(rank);
      const changed = await stateDict(model);
      for (const { data } of changed.values()) {
        for (let i = 0; i < data.length; i++) {
          data[i]! ^= i % 7;
        }
      }
      return changed;
    });
    await onRanks(worldSize, async (rank) => {
      const { model } = shardedGpt2(rank);
      await loadStateDict(model, saved!);
      expect(isSameBytes(await stateDict(model), saved!)).toBe(true);
    });
  });
});

it('stateDict with onlyTrained has no frozen entry, and gathers no frozen unit', () =>
  onRanks(2, async ({ device, group }) => {
    const model = withBuffers(device, (module) => {
      const linear = module.children().get('0');
      for (const parameter of linear?.parameters() ?? []) {
        parameter.requiresGrad = false;
      }
      return new FullyShardedDataParallel(module, { processGroup: group });
    }) as FullyShardedDataParallel;
    const all = await stateDict(model);
    const numGathered = () => group.stats().allGathers;
    const before = numGathered();
    const trained = await stateDict(model, { onlyTrained: true });
    expect(numGathered() - before).toBe(1); // the norm's unit, beside the frozen layer's
    const frozen = [...all.keys()].filter((name) => name.startsWith('0.'));
    expect(frozen).toHaveLength(2);
    for (const name of frozen) {
      all.delete(name);
    }
    expect(isSameBytes(trained, all)).toBe(true);
  }));

describe('lazy tensors', () => {
  /**
   * Returns a saved state whose tensors are read when asked for. It notes each read, and how many
   * others were pending.
   */
  function lazyState(state: StateDict) {
    const log: string[] = [];
    let numReading = 0;
    const lazy = new Map(
      [...state].map(([name, { dtype, shape, data }]) => {
        const read = async () => {
          numReading += 1;
          log.push(`${name} beside ${numReading - 1}`);
          await Promise.resolve();
          numReading -= 1;
          return data;
        };
        return [name, { dtype, shape, read }] as const;
      }),
    );
    return { lazy, log };
  }

  it('are read once and one at a time, into parameters that no device has held', async () => {
    const bare = await bareState();
    const logs = await onRanks(2, async (rank) => {
      const { model } = shardedGpt2(rank, { deferInit: true });
      const { lazy, log } = lazyState(bare);
      await loadStateDict(model, lazy);
      expect(new Set(log).size).toBe(log.length);
      expect(isSameBytes(await stateDict(model), bare)).toBe(true);
      return log;
    });
    // A rank reads only the tensors of which its shards have a part.
    const all = [...bare.keys()].map((name) => `${name} beside 0`);
    expect(new Set(logs.flat())).toEqual(new Set(all));
    expect(logs.flat().length).toBeLessThan(2 * all.length);
  });

  it.each([
    [1, 'a device'],
    [2, 'a device'],
    [3, 'a device'],
    [3, 'host memory'],
    [4, 'a device'],
  ])(
    'tensors that have parts are read once by all of %i ranks together, into %s',
    async (worldSize, place) => {
      const fsdp = { moveParamsToCpu: place === 'host memory' };
      const bare = await bareState();
      const bytesRead = await onRanks(worldSize, async (rank) => {
        const { model } = shardedGpt2(rank, { fsdp, deferInit: true });
        let total = 0;
        const lazy = new Map(
          [...bare].map(([name, { dtype, shape, data }]) => {
            const read = () => Promise.reject(new Error(`${name} was read whole`));
            const readPart = async ({ first, count }: ElementRange) => {
              total += count * 4;
              return data.subarray(first * 4, (first + count) * 4);
            };
            return [name, { dtype, shape, read, readPart }] as const;
          }),
        );
        await loadStateDict(model, lazy);
        expect(isSameBytes(await stateDict(model), bare)).toBe(true);
        return total;
      });
      const size = [...bare.values()].reduce((sum, { data }) => sum + data.byteLength, 0);
      expect(bytesRead.reduce((sum, bytes) => sum + bytes, 0)).toBe(size);
    },
  );

  it('tensors that do not fit are refused before any is read', async () => {
    const bare = await bareState();
    await onRanks(2, async (rank) => {
      const { model } = shardedGpt2(rank);
      const { lazy, log } = lazyState(bare);
      const [first, second] = [...lazy.keys()] as [string, string];
      lazy.set(first, { ...lazy.get(first)!, shape: [1] });
      lazy.set(second, { ...lazy.get(second)!, dtype: 'f64' as 'f32' }); // A file may be like this.
      const error = await loadStateDict(model, lazy).catch((reason: unknown) => reason);
      expect(error).toBeInstanceOf(StateDictError);
      expect((error as StateDictError).mismatched).toEqual([first, second]);
      expect(log).toEqual([]);
    });
  });

  it('tensors of other bytes than their shape fail on all ranks', async () => {
    const bare = await bareState();
    await onRanks(2, async (rank) => {
      const { model } = shardedGpt2(rank);
      const { lazy } = lazyState(bare);
      if (rank.rank === 1) {
        const name = [...lazy.keys()].at(-1)!;
        lazy.set(name, { ...lazy.get(name)!, read: async () => new Uint8Array(3) });
      }
      const error = await loadStateDict(model, lazy).catch((reason: unknown) => reason);
      expect(error).toBeInstanceOf(Error);
      expect((error as Error).message).toMatch(/bytes of '[^']+', f32 .*, got 3\./);
    });
  });
});

it('names what is missing, unexpected and misshapen, and loads nothing', () =>
  onRanks(2, async (rank) => {
    const { model } = shardedGpt2(rank);
    const before = await stateDict(model);
    const bad: StateDict = new Map(before);
    const [first, second] = [...bad.keys()] as [string, string];
    bad.delete(first);
    bad.set('stranger', before.get(first)!);
    bad.set(second, { dtype: 'f32', shape: [1], data: new Uint8Array(4) });
    const error = await loadStateDict(model, bad).then(
      () => undefined,
      (reason: unknown) => reason as StateDictError,
    );
    expect(error).toBeInstanceOf(StateDictError);
    expect(error).toMatchObject({
      code: 'STATE_DICT',
      missing: [first],
      unexpected: ['stranger'],
    });
    expect(error!.mismatched).toEqual([second]);
    expect(isSameBytes(await stateDict(model), before)).toBe(true);
  }));

it('loadStateDict without strict loads what is there, keeps the rest and passes over strangers', () =>
  onRanks(2, async (rank) => {
    const { model } = shardedGpt2(rank);
    const before = await stateDict(model);
    // One parameter of a block is chosen, all of another block, and none of the third block and the
    // root.
    const chosen = [...before.keys()].filter(
      (name) => name.includes('h.1.') || name.endsWith('h.0.ln_1.bias'),
    );
    const zeros = new Map(
      chosen.map((name) => {
        const entry = before.get(name)!;
        return [name, { ...entry, data: new Uint8Array(entry.data.byteLength) }] as const;
      }),
    );
    const gathered: string[] = [];
    rank.group.onTrace = ({ tag }) => gathered.push(tag ?? '');
    const entries = new Map([...zeros, ['stranger', before.get(chosen[0]!)!]]);
    await loadStateDict(model, entries, { strict: false });
    // Beside the agreements there is one gather: that of the block with some of its entries chosen.
    expect(gathered.filter((tag) => tag !== 'loadStateDict')).toEqual(['block 1']);
    expect(chosen.length).toBeGreaterThan(2);
    expect(isSameBytes(await stateDict(model), new Map([...before, ...zeros]))).toBe(true);
  }));

describe('key hygiene', () => {
  it('a dict with buffers loads into the bare module and back, bit for bit', () =>
    onRanks(2, async (rank) => {
      const model = shardedWithBuffers(rank);
      await trainOnce(model, { first: 6 * rank.rank, count: 6 });
      const saved = await stateDict(model);
      expect(saved.get('1.num_batches_tracked')).toMatchObject({ dtype: 'u32', shape: [] });
      expect(new Float32Array(saved.get('1.running_var')!.data.slice().buffer)).not.toContain(1);
      const bare = withBuffers(new Device(createReferenceBackend()));
      await loadStateDict(bare, saved);
      const again = await stateDict(bare);
      expect(again).toEqual(saved);
      const other = shardedWithBuffers({ ...rank, device: new Device(rank.device.backend) });
      await loadStateDict(other, again);
      expect(await stateDict(other)).toEqual(saved);
    }));

  it('buffers are f32 in a dict whatever they are computed in, integers as they are', () =>
    onRanks(2, async (rank) => {
      const model = shardedWithBuffers(rank, { mixedPrecision: true, computeDType: 'bf16' });
      await trainOnce(model, { first: 6 * rank.rank, count: 6 });
      const buffers = new Map(model.namedBuffers());
      expect(buffers.get('1.running_mean')!.dtype).toBe('bf16');
      for (const saved of [await stateDict(model), await localStateDict(model)]) {
        const entry = saved.get('1.running_mean')!;
        expect([entry.dtype, entry.data.byteLength]).toEqual(['f32', 4 * 33]);
        const values = new Float32Array(entry.data.slice().buffer);
        expect(values).toEqual(await buffers.get('1.running_mean')!.toArray());
        expect(saved.get('1.num_batches_tracked')!.dtype).toBe('u32');
      }
      const zeros = new Map(
        [...(await stateDict(model))].map(([name, entry]) => {
          return [name, { ...entry, data: new Uint8Array(entry.data.byteLength) }];
        }),
      );
      await loadStateDict(model, zeros);
      expect([...(await buffers.get('1.running_mean')!.toArray())]).toEqual(new Array(33).fill(0));
      expect(buffers.get('1.running_mean')!.dtype).toBe('bf16');
    }));

  it('floats of another dtype are converted, integers are not', () =>
    onRanks(2, async (rank) => {
      const model = shardedWithBuffers(rank);
      const whole = await stateDict(model);
      const half = new Map<string, StateEntry>(
        [...whole].map(([name, entry]) => {
          if (entry.dtype !== 'f32') {
            return [name, entry];
          }
          const ones = new Uint8Array(new Uint16Array(entry.data.length / 4).fill(0x3c00).buffer);
          return [name, { dtype: 'f16', shape: entry.shape, data: ones }];
        }),
      );
      await loadStateDict(model, half);
      for (const { dtype, data } of (await stateDict(model)).values()) {
        if (dtype === 'f32') {
          expect(new Set(new Float32Array(data.slice().buffer))).toEqual(new Set([1]));
        }
      }
      const wrong = new Map(whole);
      const count = whole.get('1.num_batches_tracked')!;
      wrong.set('1.num_batches_tracked', { ...count, dtype: 'f32' });
      await expect(loadStateDict(model, wrong)).rejects.toBeInstanceOf(StateDictError);
    }));
});

describe('states', () => {
  it('a state dict may be taken before the first forward, on an inner instance, and again after it', async () => {
    const bare = await bareState();
    await onRanks(2, async (rank) => {
      const { model, gpt2 } = shardedGpt2(rank);
      const inner = [...gpt2.children().values()][1] as FullyShardedDataParallel;
      const part = await stateDict(inner);
      expect(part.get('ln_1.weight')).toEqual(bare.get('transformer.h.0.ln_1.weight'));
      // Looking at the state didn't make the inner instance a root for good.
      await forwardBackward(rank.device, model, 0, { batch: 2, first: rank.rank, count: 1 });
      expect([model.isRoot, inner.isRoot]).toEqual([true, false]);
      expect(String(inner)).toContain('reshards after forward');
      expect(await stateDict(model)).toEqual(bare); // No step was made.
      expect(await stateDict(inner)).toEqual(part);
      expect(model.isRoot).toBe(true);
    });
  });

  it('local shards may be taken in every state but summonFullParams, as copies', () =>
    onRanks(2, async (rank) => {
      const { model, gpt2 } = shardedGpt2(rank);
      const inForward: StateDict[] = [];
      const [, first] = [...gpt2.children().values()] as [Module, FullyShardedDataParallel];
      first.module.aroundForward({
        before: async () => {
          inForward.push(await localStateDict(model));
        },
      });
      await forwardBackward(rank.device, model, 0, { batch: 2, first: rank.rank, count: 1 });
      const after = await localStateDict(model);
      expect(inForward).toEqual([after]);
      await summonFullParams(first, async () => {
        await expect(localStateDict(model)).rejects.toMatchObject({ code: 'FSDP_STATE' });
      });
      await loadStateDict(
        model,
        new Map(
          [...(await stateDict(model))].map(([name, entry]) => {
            return [name, { ...entry, data: new Uint8Array(entry.data.byteLength) }];
          }),
        ),
      );
      expect(inForward[0]).toEqual(after); // These are copies, which the load has not changed.
      expect(await localStateDict(model)).not.toEqual(after);
    }));
});

describe.each(['option', 'call'])('stateDictOnRank0Only, stateDictDevice as an %s', (place) => {
  const asked = (options: object) =>
    place === 'option' ? { fsdp: options, call: {} } : { fsdp: {}, call: options };

  it('gives rank 0 all entries and the others none, who hold one shard on the way', async () => {
    const bare = await bareState();
    const { fsdp, call } = asked({ stateDictOnRank0Only: true });
    await onRanks(3, async (rank) => {
      const { model } = shardedGpt2(rank, { fsdp });
      await model.initialize();
      const before = rank.group.stats();
      const found = await stateDict(model, call);
      expect(found).toEqual(rank.rank === 0 ? bare : new Map());
      const stats = rank.group.stats();
      expect(stats.gathers - before.gathers).toBe(4);
      expect(stats.allGathers).toBe(before.allGathers);
      const shards = model.instances().flatMap(({ units }) => units);
      const bytes = shards.reduce((sum, { flat }) => sum + flat.storage.byteLength, 0);
      expect(stats.bytesReceived - before.bytesReceived).toBe(rank.rank === 0 ? 2 * bytes : 0);
    });
  });

  it("leaves tensors on the device with 'device', which load again", async () => {
    const bare = await bareState();
    const { fsdp, call } = asked({ stateDictDevice: 'device' });
    await onRanks(2, async (rank) => {
      const { model } = shardedGpt2(rank, { fsdp });
      await model.initialize();
      const { live } = rank.device.memory();
      const found = await stateDict(model, call);
      expect([...found.keys()]).toEqual([...bare.keys()]);
      const sizes = [...found.values()].map(({ tensor }) => tensor!.storage.byteLength);
      const bytes = sizes.reduce((sum, size) => sum + size, 0);
      expect(rank.device.memory().live.total - live.total).toBe(bytes);
      for (const [name, { tensor, dtype, shape, data }] of found) {
        expect([dtype, shape, data.byteLength]).toEqual(['f32', bare.get(name)!.shape, 0]);
        expect(await tensor!.toBytes()).toEqual(bare.get(name)!.data);
      }
      const other = shardedGpt2({ ...rank, device: new Device(rank.device.backend) }).model;
      await loadStateDict(other, found);
      expect(await stateDict(other)).toEqual(bare);
      for (const { tensor } of found.values()) {
        tensor!.dispose();
      }
      expect(rank.device.memory().live).toEqual(live);
    });
  });
});

it('rank 0 gets what an instance shards over a group in which it is not the first', () =>
  onRanks(3, async (rank) => {
    const { device, group } = rank;
    const reversed = await group.split(0, group.worldSize - rank.rank);
    expect(reversed.rank).toBe(group.worldSize - 1 - rank.rank);
    const inner = new FullyShardedDataParallel(layer(device), { processGroup: reversed });
    const model = wrapIn({ group })(new Stack(device, [layer(device), inner]));
    const whole = await stateDict(model);
    const forFirst = await stateDict(model, { stateDictOnRank0Only: true });
    expect(forFirst).toEqual(rank.rank === 0 ? whole : new Map());
  }));

it.each([1, 2])('a large tensor is read in parts of 8 MiB into one room, at %i', (worldSize) =>
  onRanks(worldSize, async (rank) => {
    const [rows, columns] = [2304, 2048]; // 18 MiB: two parts for each of two ranks
    let waiting = 0; // the most kernels that some bytes of the weights waited behind
    const onWrite = (numWaiting: number) => {
      waiting = Math.max(waiting, numWaiting);
    };
    const device = new Device(
      lateBackend(rank.device.backend, { slow: () => true, numTurns: 20, onWrite }),
    );
    const deferred = () => new Deferred(device, [rows, columns]);
    const values = Float32Array.from({ length: rows * columns }, (_, i) => i % 65_537);
    const bytes = new Uint8Array(values.buffer);
    for (const make of [() => wrapIn(rank)(deferred()), deferred]) {
      const counts: number[] = [];
      const rooms = new Set<ArrayBufferLike>();
      const entry: LazyTensor = {
        dtype: 'f32',
        shape: [rows, columns],
        read: () => Promise.reject(new Error('read as a whole')),
        readPart: async ({ first, count }, into) => {
          if (counts.length === 0) {
            waiting = 0;
          }
          keepBusy(device, model);
          counts.push(count);
          rooms.add(into!.buffer);
          into!.set(bytes.subarray(4 * first, 4 * (first + count)));
          return into!.subarray(0, 4 * count);
        },
      };
      const model = make();
      await loadStateDict(model, new Map([['weight', entry]]));
      expect(Math.max(...counts)).toBe(2 ** 21);
      expect(counts.length).toBeGreaterThan(1);
      expect(rooms.size).toBe(1);
      expect(waiting).toBe(0);
      const { data } = (await stateDict(model)).get('weight')!;
      expect(Buffer.compare(data, bytes)).toBe(0);
      model.dispose();
    }
  }),
);

/** A weight that gets its memory when it is loaded. */
class Deferred extends Module<[Tensor], Tensor> {
  constructor(device: Device, shape: Shape) {
    super(device);
    const recipe = hostRecipe((values) => values.fill(0));
    this.parameter('weight', deferredParameter(device, shape, recipe));
  }

  override forward(x: Tensor): Tensor {
    return x;
  }
}

/** Queues something that the device is at for some time, on the weights where they are here. */
function keepBusy(device: Device, model: Module<never>): void {
  device.scope(() => {
    device.zeros([1]);
    for (const parameter of model.parameters()) {
      const { storage } = parameter.piece?.flat ?? parameter;
      if (storage.isFilled) {
        device.run('affine', { x: storage.view(), out: storage.view(), scale: 1, shift: 0 });
      }
    }
  });
}
