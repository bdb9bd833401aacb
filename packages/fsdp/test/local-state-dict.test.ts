// Each rank saves and loads its own shards.

import type { FullyShardedDataParallel } from '@shardweave/fsdp';
import { loadLocalStateDict, localStateDict, summonFullParams } from '@shardweave/fsdp/fairscale';
import { crossEntropy, type Device } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { type forwardBackward, onRanks } from '../../../tooling/test-kit/index.ts';
import { shardedWithBuffers } from './support/batch-norm-model.js';
import { shardedGpt2 } from './support/sharding.js';

it('local shards round-trip and invalidate what was gathered', () =>
  onRanks(2, async (rank) => {
    const { model } = shardedGpt2(rank, { fsdp: { reshardAfterForward: false } });
    const rows = { batch: 2, first: rank.rank, count: 1 };
    const saved = await localStateDict(model);
    expect([...saved.keys()]).toEqual([
      'flat_param_0',
      'flat_param_1',
      'flat_param_2',
      'flat_param_3',
    ]);
    const lossOf = () => forwardOnly(rank.device, model, rows);
    const loss = await rank.device.noGrad(lossOf);
    await summonFullParams(model, () => {
      for (const parameter of model.parameters()) {
        rank.device.backend.run('fill', { out: parameter.view(), value: 0.25 });
      }
    });
    expect(await rank.device.noGrad(lossOf)).not.toBe(loss);
    await loadLocalStateDict(model, saved);
    expect(await rank.device.noGrad(lossOf)).toBe(loss);
  }));

describe('a local dict', () => {
  it('trains on from where it was saved, on every instance that kept full parameters', () =>
    onRanks(2, async (rank) => {
      const { model, gpt2 } = shardedGpt2(rank, { fsdp: { reshardAfterForward: false } });
      const saved = await localStateDict(model);
      const rows = { batch: 2, first: rank.rank, count: 1 };
      const inner = [...gpt2.children().values()][2] as FullyShardedDataParallel;
      const values = Float32Array.from({ length: 48 }, (_, i) => Math.sin(i));
      const x = rank.device.tensor(values, [1, 4, 12]).keep();
      const innerOutput = () =>
        rank.device.noGrad(() =>
          rank.device.scope(async () => [...(await (await inner.call(x)).toArray())]),
        );
      const loss = await rank.device.noGrad(() => forwardOnly(rank.device, model, rows));
      const output = await innerOutput();
      const zeros = new Map(
        [...saved].map(([key, entry]) => {
          return [key, { ...entry, data: new Uint8Array(entry.data.byteLength) }];
        }),
      );
      expect(model.units[0]!.full.isPresent || inner.units[0]!.full.isPresent).toBe(true);
      await loadLocalStateDict(model, zeros);
      for (const instance of model.instances()) {
        expect(instance.units.some(({ full }) => full.isPresent || full.storage.isFilled)).toBe(
          false,
        );
      }
      expect(await innerOutput()).not.toEqual(output);
      await loadLocalStateDict(model, saved);
      expect(await innerOutput()).toEqual(output);
      expect(await rank.device.noGrad(() => forwardOnly(rank.device, model, rows))).toBe(loss);
      x.dispose();
    }));

  it('is refused with other keys, and with strict: false loads what is there', () =>
    onRanks(2, async (rank) => {
      const model = shardedWithBuffers(rank);
      const saved = await localStateDict(model);
      const zeroed = {
        ...saved.get('flat_param_1')!,
        data: new Uint8Array(saved.get('flat_param_1')!.data.byteLength),
      };
      const partial = new Map([['flat_param_1', zeroed]]);
      await expect(loadLocalStateDict(model, partial)).rejects.toMatchObject({
        missing: ['1.running_mean', '1.running_var', '1.num_batches_tracked', 'flat_param_0'],
      });
      expect(await localStateDict(model)).toEqual(saved);
      await loadLocalStateDict(model, partial, { strict: false });
      expect(await localStateDict(model)).toEqual(new Map([...saved, ['flat_param_1', zeroed]]));
    }));
});

async function forwardOnly(
  device: Device,
  model: Parameters<typeof forwardBackward>[1],
  rows: Parameters<typeof forwardBackward>[3],
): Promise<number> {
  const ids = Int32Array.from({ length: rows.count * 8 }, (_, i) => (i * 5) % 37);
  return device.scope(async () => {
    const input = device.tensor(ids, [rows.count, 8]);
    return crossEntropy(await model.call(input), input).item();
  });
}
