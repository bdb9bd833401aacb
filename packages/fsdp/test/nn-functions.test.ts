// Some functions of nn look like those of fsdp. On a sharded module they would see one rank's part,
// or a copy that nobody reads, so they refuse it on every rank alike.

import { type FsdpOptions, FullyShardedDataParallel } from '@shardweave/fsdp';
import { summonFullParams } from '@shardweave/fsdp/fairscale';
import {
  AdamW,
  clipGradNorm,
  gradNorm,
  Linear,
  loadStateDict,
  NnConfigError,
  OptimizerError,
  resetParameters,
  Sequential,
  scaleGradients,
  stateDict,
} from '@shardweave/nn';
import { describe, expect, it } from 'vitest';
import { onRanks, type Rank } from '../../../tooling/test-kit/index.ts';

/** Returns a first layer that rank 0 holds whole, and a second one that the ranks share. */
function sharded({ device, group }: Rank, options: Partial<FsdpOptions> = {}) {
  const layers = [
    new Linear(device, { inFeatures: 2, outFeatures: 3 }),
    new Linear(device, { inFeatures: 3, outFeatures: 200 }),
  ] as const;
  const net = new Sequential(device, layers);
  const model = new FullyShardedDataParallel(net, { processGroup: group, ...options });
  const forward = async () => model.call(device.full([2, 2], 1));
  const backward = () =>
    device.scope(async () => {
      const out = await forward();
      await out.backward({ gradient: device.full(out.shape, 1) });
    });
  /** Leaves gathered parameters behind, since the root keeps them until the next step. */
  const evaluate = () =>
    device.noGrad(() =>
      device.scope(async () => {
        await forward();
      }),
    );
  return { model, net, first: layers[0], backward, evaluate };
}

describe('gradients of a shard are not those of the model', () => {
  it.each([
    ['whole model', (net: Sequential) => net.parameters()],
    ['a layer that one rank holds whole', (net: Sequential) => net.layers()[0]!.parameters()],
  ])('nn.clipGradNorm refuses sharded parameters on every rank: %s', (_, pick) =>
    onRanks(2, async (rank) => {
      const { net, backward } = sharded(rank);
      await backward();
      const parameters = pick(net);
      for (const target of [parameters, net]) {
        await expect(clipGradNorm(target, 1)).rejects.toThrow(NnConfigError);
        await expect(gradNorm(target)).rejects.toThrow(/Call it with the wrapper that shards them/);
      }
      await expect(scaleGradients(parameters, rank.device.full([1], 1))).rejects.toThrow(
        NnConfigError,
      );
    }),
  );

  it('nn.clipGradNorm takes parameters that one rank shards alone, and so has whole', () =>
    onRanks(1, async (rank) => {
      const { net, backward } = sharded(rank, { mixedPrecision: true, computeDType: 'bf16' });
      await backward();
      const flat = net.parameters()[0]!.piece!.flat;
      const gradient = await flat.grad!.toArray();
      const norm = await (await clipGradNorm(net.parameters(), 1)).norm.item();
      expect(norm).toBeGreaterThan(1);
      expect(norm).toBeCloseTo(Math.hypot(...gradient), 3);
    }));
});

describe('values of a sharded module rest in its shards', () => {
  it.each([1, 2])('nn state dicts refuse gathered copies, %i rank(s)', async (worldSize) => {
    const options = { mixedPrecision: true, computeDType: 'bf16' } as const;
    await onRanks(worldSize, async (rank) => {
      const { first, evaluate } = sharded(rank, options);
      await evaluate();
      expect(first.weight.storage.isFilled).toBe(true); // A read would give the copy.
      await expect(stateDict(first)).rejects.toThrow(NnConfigError);
      const zeros = first.namedParameters().map(([name, { shape, size }]) => {
        return [name, { dtype: 'f32', shape, data: new Uint8Array(size * 4) }] as const;
      });
      await expect(loadStateDict(first, new Map(zeros))).rejects.toThrow(NnConfigError);
      await expect(loadStateDict(first, new Map(zeros))).rejects.toThrow(
        /Call it with the wrapper that holds them/,
      );
    });
  });

  it('nn.resetParameters refuses gathered copies, which nobody writes back', () =>
    onRanks(2, async (rank) => {
      const { model, first, evaluate } = sharded(rank);
      await evaluate();
      expect(() => resetParameters(first, { seed: 1 })).toThrow(NnConfigError);
      expect(() => resetParameters(model, { seed: 1 })).toThrow(/resetParameters/);
    }));

  it('a model that one rank shards in f32 equals its shard, so nn writes to the right place', () =>
    onRanks(1, async (rank) => {
      const { model, net, evaluate } = sharded(rank);
      await evaluate();
      resetParameters(net, { seed: 1 });
      const state = await stateDict(net);
      await summonFullParams(model, async () => {
        const { data } = state.get('0.weight')!;
        expect(await net.parameters()[0]!.toBytes()).toEqual(data);
      });
    }));
});

it('the state dict of an optimizer refuses sharded parameters on every rank', () =>
  onRanks(2, async (rank) => {
    const { first, backward } = sharded(rank);
    const optimizer = new AdamW(first.parameters());
    await backward();
    await optimizer.step();
    const named = first.namedParameters();
    await expect(optimizer.stateDict(named)).rejects.toThrow(OptimizerError);
    const dict = { state: new Map(), paramGroups: [] };
    await expect(optimizer.loadStateDict(dict, named)).rejects.toThrow(OptimizerError);
  }));
