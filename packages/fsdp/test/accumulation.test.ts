// Gradients of several backwards add up, whichever root reduces them. The cells of
// equals-plain.test.ts compare micro-batches with whole batches.

import { FullyShardedDataParallel } from '@shardweave/fsdp';
import { summonFullParams } from '@shardweave/fsdp/fairscale';
import { gradNorm } from '@shardweave/nn';
import { expect, it } from 'vitest';
import {
  forwardBackward,
  layer,
  onRanks,
  Stack,
  trainOnce,
} from '../../../tooling/test-kit/index.ts';
import { shardedGpt2 } from './support/sharding.js';

const WORLD_SIZE = 2;

it('noSync of sibling roots in a plain module adds up as their own backwards do', () =>
  onRanks(WORLD_SIZE, async ({ device, group, rank }) => {
    const wrap = () => new FullyShardedDataParallel(layer(device), { processGroup: group });
    const roots = [wrap(), wrap()] as const;
    const model = new Stack(device, roots);
    const norms = async (isSyncing: boolean) => {
      const first = () => trainOnce(model, { first: rank, count: 1 }, 0);
      if (isSyncing) {
        await first();
      } else {
        await roots[0].noSync(() => roots[1].noSync(first));
      }
      expect(roots.map(({ units }) => units[0]!.flat.grad !== undefined)).toEqual([
        isSyncing,
        isSyncing,
      ]);
      await trainOnce(model, { first: rank, count: 1 }, 1);
      const result = [await gradNorm(roots[0]), await gradNorm(roots[1])];
      model.zeroGrad();
      return result;
    };
    const [summed, separate] = [await norms(false), await norms(true)];
    summed.forEach((norm, i) => {
      expect(norm).toBeCloseTo(separate[i]!, 6);
      expect(norm).toBeGreaterThan(0);
    });
  }));

it('two synchronized backwards without a step add up, as do their norms', () =>
  onRanks(WORLD_SIZE, async (rank) => {
    const { model } = shardedGpt2(rank);
    const rows = { batch: WORLD_SIZE, first: rank.rank, count: 1 };
    await forwardBackward(rank.device, model, 0, rows);
    const once = await gradNorm(model);
    await forwardBackward(rank.device, model, 0, rows);
    expect(await gradNorm(model)).toBeCloseTo(2 * once, 5);
  }));

it('refuses noSync on an inner instance and a forward inside summon', () =>
  onRanks(WORLD_SIZE, async (rank) => {
    const { model } = shardedGpt2(rank);
    const rows = { batch: WORLD_SIZE, first: rank.rank, count: 1 };
    await forwardBackward(rank.device, model, 0, rows);
    const inner = model.instances()[1]!;
    await expect(inner.noSync(() => undefined)).rejects.toThrow(
      /noSync: expected the root instance/,
    );
    await expect(
      summonFullParams(model, () => forwardBackward(rank.device, model, 0, rows)),
    ).rejects.toThrow(/forward: expected state .*summonFullParams/);
    model.assertState('idle');
    await forwardBackward(rank.device, model, 1, rows); // The model still trains.
  }));
