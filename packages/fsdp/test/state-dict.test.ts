// Parameters in and out of a sharded module.

import {
  FsdpStateDictError,
  loadLocalStateDict,
  loadStateDict,
  localStateDict,
  type StateDict,
  stateDict,
  summonFullParams,
} from '@shardweave/fsdp';
import { Gpt2 } from '@shardweave/nn';
import { Device } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';
import { forwardBackward, onRanks, shardedGpt2, TINY } from './ranks.js';

/** Names, shapes and bytes of the module that the sharded ones start from. */
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
      for (const { data } of changed.values())
        for (let i = 0; i < data.length; i++) data[i]! ^= i % 7;
      return changed;
    });
    await onRanks(worldSize, async (rank) => {
      const { model } = shardedGpt2(rank);
      await loadStateDict(model, saved!);
      expect(isSameBytes(await stateDict(model), saved!)).toBe(true);
    });
  });
});

it('names what is missing, unexpected and misshapen, and loads nothing', async () => {
  await onRanks(2, async (rank) => {
    const { model } = shardedGpt2(rank);
    const before = await stateDict(model);
    const bad: StateDict = new Map(before);
    const [first, second] = [...bad.keys()] as [string, string];
    bad.delete(first);
    bad.set('stranger', before.get(first)!);
    bad.set(second, { dtype: 'f32', shape: [1], data: new Uint8Array(4) });
    const error = await loadStateDict(model, bad).then(
      () => undefined,
      (reason: unknown) => reason as FsdpStateDictError,
    );
    expect(error).toBeInstanceOf(FsdpStateDictError);
    expect(error).toMatchObject({
      code: 'FSDP_STATE_DICT',
      missing: [first],
      unexpected: ['stranger'],
    });
    expect(error!.mismatched[0]).toContain(second);
    expect(isSameBytes(await stateDict(model), before)).toBe(true);
  });
});

it('without strict, loads what is there, keeps the rest and passes over strangers', async () => {
  await onRanks(2, async (rank) => {
    const { model } = shardedGpt2(rank);
    const before = await stateDict(model);
    // One parameter of a block, all of another; the third block and the root have none.
    const chosen = [...before.keys()].filter(
      (name) => name.includes('h.1.') || name.endsWith('h.0.ln_1.bias'),
    );
    const zeros = new Map(
      chosen.map((name) => {
        const entry = before.get(name)!;
        return [name, { ...entry, data: new Uint8Array(entry.data.byteLength) }] as const;
      }),
    );
    const gathers = rank.group.stats().allGathers;
    const entries = new Map([...zeros, ['stranger', before.get(chosen[0]!)!]]);
    await loadStateDict(model, entries, { strict: false });
    expect(rank.group.stats().allGathers - gathers).toBe(1); // of the block with a part of its entries
    expect(chosen.length).toBeGreaterThan(2);
    expect(isSameBytes(await stateDict(model), new Map([...before, ...zeros]))).toBe(true);
  });
});

it('local shards round-trip and invalidate what was gathered', async () => {
  await onRanks(2, async (rank) => {
    const { model } = shardedGpt2(rank, { fsdp: { reshardAfterForward: false } });
    const rows = { batch: 2, first: rank.rank, count: 1 };
    const saved = await localStateDict(model);
    expect([...saved.keys()][0]).toBe('flat_param_0');
    const loss = await rank.device.noGrad(() => lossOf());
    async function lossOf(): Promise<number> {
      return forwardOnly(rank.device, model, rows);
    }
    await summonFullParams(model, () => {
      for (const parameter of model.parameters()) {
        rank.device.backend.run('fill', { out: parameter.view(), value: 0.25 });
      }
    });
    expect(await rank.device.noGrad(lossOf)).not.toBe(loss);
    await loadLocalStateDict(model, saved);
    expect(await rank.device.noGrad(lossOf)).toBe(loss);
  });
});

describe('summonFullParams', () => {
  it('keeps each rank own shard of what is written: a patchwork', async () => {
    await onRanks(2, async (rank) => {
      const { model } = shardedGpt2(rank);
      await summonFullParams(model, () => {
        for (const parameter of model.parameters()) {
          rank.device.backend.run('fill', { out: parameter.view(), value: rank.rank + 1 });
        }
      });
      const [, { data }] = [...(await stateDict(model))][0]!;
      const values = new Float32Array(data.slice().buffer);
      expect(values[0]).toBe(1);
      expect(new Set(values)).toEqual(new Set([1])); // wte lies in rank 0's half of the root
      const last = [...(await stateDict(model)).values()].at(-1)!;
      expect(new Set(new Float32Array(last.data.slice().buffer))).toEqual(new Set([2]));
    });
  });

  it('drops writes when volatile, restores memory, and restores when the body throws', async () => {
    await onRanks(2, async (rank) => {
      const { model } = shardedGpt2(rank);
      const before = await stateDict(model);
      const bytes = rank.device.memory().live;
      await summonFullParams(
        model,
        () => {
          const [parameter] = model.parameters();
          rank.device.backend.run('fill', { out: parameter!.view(), value: 9 });
        },
        { volatile: true },
      );
      await expect(
        summonFullParams(model, () => {
          throw new Error('body');
        }),
      ).rejects.toThrow('body');
      expect(rank.device.memory().live).toEqual(bytes);
      expect(isSameBytes(await stateDict(model), before)).toBe(true);
      await forwardBackward(rank.device, model, 0, { batch: 2, first: rank.rank, count: 1 });
    });
  });

  it('refuses to nest', async () => {
    await onRanks(2, async (rank) => {
      const { model } = shardedGpt2(rank);
      await expect(
        summonFullParams(model, () => summonFullParams(model, () => undefined)),
      ).rejects.toMatchObject({ code: 'FSDP_STATE' });
    });
  });
});

async function forwardOnly(
  device: Device,
  model: Parameters<typeof forwardBackward>[1],
  rows: Parameters<typeof forwardBackward>[3],
): Promise<number> {
  const { crossEntropy } = await import('@shardweave/tensor-core');
  const ids = Int32Array.from({ length: rows.count * 8 }, (_, i) => (i * 5) % 37);
  return device.scope(async () => {
    const input = device.tensor(ids, [rows.count, 8]);
    return crossEntropy(await model.call(input), input).item();
  });
}
