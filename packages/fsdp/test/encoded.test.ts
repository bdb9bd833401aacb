// Frozen parameters may rest in an encoded form. They are sharded and gathered as encoded bytes,
// and decoded around their use.

import {
  FsdpConfigError,
  type FsdpOptions,
  FsdpStateError,
  FullyShardedDataParallel,
} from '@shardweave/fsdp';
import {
  consolidateShardWeights,
  localMetadataDict,
  localStateDict,
  summonFullParams,
} from '@shardweave/fsdp/fairscale';
import {
  AdamW,
  loadCheckpoint,
  loadStateDict,
  type Module,
  OptimizerError,
  Sequential,
  saveCheckpoint,
  stateDict,
} from '@shardweave/nn';
import { type Device, StateError, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  EncodedLinear,
  int8Weight,
  scaledF16Weight,
  WIDTH,
} from '../../../tooling/test-kit/encoded-linear.ts';
import { lossOf, onRanks, type Rank, stepped } from '../../../tooling/test-kit/index.ts';
import { place } from './support/saved-models.js';
import { wrapIn } from './support/sharding.js';

const ROWS = 6; // 1, 2 and 3 ranks divide it.
const [int8, scaledF16] = [await int8Weight(0), await scaledF16Weight(1)];
// This is the number of words of a flat parameter with one encoded weight, in one shard.
const SPAN = 128;

/** Returns inputs [rows, WIDTH] with a gradient. */
function inputs(device: Device, { rank, group }: Pick<Rank, 'rank' | 'group'>): Tensor {
  const rows = ROWS / group.worldSize;
  const values = Float32Array.from({ length: rows * WIDTH }, (_, i) =>
    Math.cos(i + 1 + rank * rows * WIDTH),
  );
  const x = device.tensor(values, [rows, WIDTH]);
  x.requiresGrad = true; // So backward needs the second layer's base weight.
  return x;
}

function layers({ device }: Rank, isEncoded: boolean) {
  return [int8, scaledF16].map((weight) => new EncodedLinear(device, weight, { isEncoded }));
}

function sharded(rank: Rank, options: Partial<FsdpOptions> = {}) {
  const wrap = wrapIn(rank, options);
  const inner = layers(rank, true).map((layer, i) => wrap(layer, `layer${i}`));
  return { model: wrap(new Sequential(rank.device, inner), 'root'), inner };
}

async function losses(model: Module, rank: Rank): Promise<number[]> {
  const { device } = rank;
  const optimizer = new AdamW(
    model.parameters().filter(({ requiresGrad }) => requiresGrad),
    { lr: 0.05 },
  );
  return stepped(optimizer, 3, () =>
    device.scope(async () => {
      const loss = lossOf(await model.call(inputs(device, rank)));
      await loss.backward();
      return loss.item();
    }),
  );
}

const [plain] = await onRanks(1, (rank) =>
  losses(new Sequential(rank.device, layers(rank, false)), rank),
);

describe.each([1, 2, 3])('world size %i', (worldSize) => {
  it.each<Partial<FsdpOptions>>([
    {},
    { reshardAfterForward: false },
    { flattenParameters: false },
    { moveParamsToCpu: true },
  ])(
    'a model trains beside encoded parameters as beside their values, with %j',
    async (options) => {
      const found = await onRanks(worldSize, (rank) => losses(sharded(rank, options).model, rank));
      const mean = found[0]!.map(
        (_, step) => found.reduce((sum, each) => sum + each[step]!, 0) / worldSize,
      );
      if (worldSize === 1) {
        expect(mean).toEqual(plain);
      }
      mean.forEach((loss, step) => {
        expect(loss).toBeCloseTo(plain![step]!, 6);
      });
    },
  );

  it('encoded parameters are words at rest and on the wire, and values in the dtype of computation in use', () =>
    onRanks(worldSize, async (rank) => {
      const { device, group } = rank;
      const { model, inner } = sharded(rank, {
        mixedPrecision: true,
        computeDType: 'bf16',
        disableReshardOnRoot: false,
      });
      const received: [string | undefined, number][] = [];
      await model.initialize();
      group.onTrace = ({ tag, bytes }) => void received.push([tag, bytes]);
      const seen: number[][] = [];
      for (const { module } of inner) {
        (module as EncodedLinear).aroundForward({
          before: async () => void seen.push([...(await module.parameters()[0]!.toArray())]),
        });
      }
      await device.noGrad(() =>
        device.scope(async () => void (await model.call(inputs(device, rank)))),
      );
      seen.forEach((values, i) => {
        values.forEach((value, k) => {
          // The values were decoded to bf16.
          expect(value).toBeCloseTo([int8, scaledF16][i]!.values[k]!, 2);
        });
      });
      const encoded = inner.map(({ units }) => units.find(({ values }) => values.isEncoded)!);
      expect(encoded.map(({ name, flat, full }) => [name, flat.dtype, full.storage.dtype])).toEqual(
        [
          ['layer0.frozen.encoded', 'u32', 'bf16'],
          ['layer1.frozen.encoded', 'u32', 'bf16'],
        ],
      );
      const trained = inner.flatMap(({ units }) => units.filter((unit) => !unit.values.isEncoded));
      const masters = trained.reduce((sum, { flat }) => sum + flat.storage.byteLength, 0);
      expect(device.memory().live).toMatchObject({
        parameter: masters + 2 * 4 * SPAN,
        gathered: 0,
        staging: 0,
      });
      const bytes = received.filter(([tag]) => tag?.endsWith('encoded')).map(([, count]) => count);
      expect(bytes).toEqual(worldSize === 1 ? [] : [4 * SPAN, 4 * SPAN]);
    }));

  it('encoded words go out and come back: whole, in shards and in saves', async () => {
    const store = place();
    const shards = await onRanks(worldSize, async (rank) => {
      const { model } = sharded(rank);
      const state = await stateDict(model);
      expect(state.get('0.base')).toMatchObject({ dtype: 'u32', shape: [14] });
      expect(state.get('0.base')!.data.subarray(0, int8.bytes.byteLength)).toEqual(int8.bytes);
      await saveCheckpoint(model, store);
      const cleared = new Map(
        [...state].map(([name, entry]) => [
          name,
          { ...entry, data: new Uint8Array(entry.data.length) },
        ]),
      );
      const { model: other } = sharded(rank);
      await loadStateDict(other, cleared);
      expect(await stateDict(other)).toEqual(cleared);
      await loadStateDict(other, state);
      expect(await losses(other, rank)).toEqual(await losses(model, rank));
      return { weights: await localStateDict(other), metadata: localMetadataDict(other), state };
    });
    const joined = consolidateShardWeights(
      shards.map(({ weights }) => weights),
      shards.map(({ metadata }) => metadata),
    );
    expect(joined.get('1.base')).toEqual(shards[0]!.state.get('1.base'));
    await onRanks(2, async (rank) => {
      const { model } = sharded(rank);
      await loadCheckpoint(model, store);
      expect(await stateDict(model)).toEqual(shards[0]!.state);
    });
  });
});

it('summonFullParams shows their values, and refuses what is written into them', () =>
  onRanks(2, async (rank) => {
    const { device } = rank;
    const { model, inner } = sharded(rank);
    const [base] = inner[0]!.parameters();
    await summonFullParams(model, async () => {
      expect(await base!.toArray()).toEqual(int8.values);
    });
    expect(device.memory().live.gathered).toBe(0);
    const writing = summonFullParams(model, () => {
      device.noGrad(() => device.scope(() => device.copyInto(base!, device.zeros([WIDTH, WIDTH]))));
    });
    const refusal = /write into the f32 copy of int8 in blocks of 256 values/;
    await expect(writing).rejects.toThrow(refusal);
    await expect(writing).rejects.toThrow(FsdpStateError);
    expect(device.memory().live.gathered).toBe(0);
    await summonFullParams(model, async () => {
      expect(await base!.toArray()).toEqual(int8.values);
    });
  }));

it('no wrapper, backward or optimizer trains encoded parameters', () =>
  onRanks(1, async (rank) => {
    const { device, group: processGroup } = rank;
    const [bare] = layers(rank, true);
    bare!.base.requiresGrad = true;
    const wrapping = () => new FullyShardedDataParallel(bare!, { processGroup });
    expect(wrapping).toThrow(/encoded parameters to be frozen, got requiresGrad of 'base'/);
    expect(wrapping).toThrow(FsdpConfigError);
    bare!.base.requiresGrad = false;
    const groups = [{ name: 'all', params: bare!.parameters() }];
    const grouping = () =>
      new FullyShardedDataParallel(bare!, { processGroup, flattenParameters: groups });
    expect(grouping).toThrow(/got encoded f32 'base' and f32 'adapter.weight'/);

    const { model, inner } = sharded(rank);
    const [base] = inner[0]!.parameters();
    expect(() => new AdamW([base!], { lr: 1 })).toThrow(OptimizerError);
    base!.requiresGrad = true;
    const training = device.scope(async () =>
      lossOf(await inner[0]!.call(inputs(device, rank))).backward(),
    );
    await expect(training).rejects.toThrow(StateError);
    await expect(training).rejects.toThrow(/to stay frozen, got requiresGrad of a parameter/);
    base!.requiresGrad = false;
    await losses(model, rank);
  }));

it('ranks compare which parameters are encoded, and how', () =>
  onRanks(2, async (rank) => {
    const { device, group: processGroup } = rank;
    const format = `int8, kind ${rank.rank}`;
    const weight = { ...int8, encoding: { ...int8.encoding, format } };
    const module = new EncodedLinear(device, weight, { isEncoded: true });
    const model = new FullyShardedDataParallel(module, { processGroup });
    await expect(model.initialize()).rejects.toThrow(/in int8, kind 0 on rank 0/);
  }));

it('an encoded parameter outside of a wrapper says what it is', () =>
  onRanks(1, async (rank) => {
    const [bare] = layers(rank, true);
    await expect(bare!.call(inputs(rank.device, rank))).rejects.toThrow(
      /Its values rest as int8 in blocks of 256: wrap its module/,
    );
  }));
