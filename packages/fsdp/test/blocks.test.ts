// Frozen weights in ggml's blocks are words at rest, on the wire and while they are gathered: no
// copy of their numbers exists beside a product.

import { blocksByteLength, encodeBlocks } from '@shardweave/dtypes/blocks';
import { FsdpConfigError, FullyShardedDataParallel } from '@shardweave/fsdp';
import { summonFullParams } from '@shardweave/fsdp/fairscale';
import { Linear, loadStateDict, quantizeBase, Sequential, stateDict } from '@shardweave/nn';
import type { Device } from '@shardweave/tensor-core';
import { expect, it } from 'vitest';
import { freeze, onRanks } from '../../../tooling/test-kit/index.ts';
import { shardLayout } from '../src/unit/shard-layout.js';
import { wrapIn } from './support/sharding.js';

const WIDTH = 256;
const WORDS = blocksByteLength('q4_K', WIDTH * WIDTH) / 4;

/** Two layers: a frozen one whose weight rests in blocks, and a trained one. */
async function pair(device: Device): Promise<Linear[]> {
  const layer = () => new Linear(device, { inFeatures: WIDTH, outFeatures: WIDTH, bias: false });
  const frozen = freeze(layer());
  await quantizeBase(frozen, { type: 'q4_K' });
  return [frozen, layer()];
}

it.each([1, 2, 3])('rests, is gathered and crosses the wire by formula at %i', (worldSize) =>
  onRanks(worldSize, async (rank) => {
    const { device, group } = rank;
    const [frozen, trained] = await pair(device);
    const wrap = wrapIn(rank, { mixedPrecision: true, computeDType: 'bf16' });
    const first = wrap(frozen!, 'first');
    const model = wrap(new Sequential(device, [first, trained!]), 'root');
    await model.initialize();
    const { shardLength } = shardLayout([WORDS], worldSize);
    const masters = shardLayout([WIDTH * WIDTH], worldSize).shardLength;
    expect(device.memory().live.parameter).toBe(4 * (shardLength + masters));
    const received = new Map<string | undefined, number>();
    group.onTrace = ({ tag, bytes }) => void received.set(tag, bytes);
    device.ledger.resetPeak();
    const x = device.zeros([2, WIDTH], { dtype: 'bf16' });
    await device.noGrad(() => device.scope(async () => void (await model.call(x))));
    // At one rank the words are used where they rest. The layer after them is gathered in bf16.
    const words = worldSize === 1 ? 0 : 4 * shardLength * worldSize;
    expect(device.ledger.peak().gathered).toBe(words + 2 * masters * worldSize);
    expect(received.get('first.blocks')).toBe(worldSize === 1 ? undefined : 4 * shardLength);
    x.dispose();
  }),
);

it.each(['q8_0', 'q4_K'] as const)('is encoded by each rank for its own part, in %s', (type) =>
  onRanks(3, async (rank) => {
    const { device } = rank;
    const numbers = Float32Array.from({ length: WIDTH * WIDTH }, (_, i) => Math.sin(i * i));
    const frozen = freeze(
      new Linear(device, { inFeatures: WIDTH, outFeatures: WIDTH, bias: false }),
    );
    await quantizeBase(frozen, { type });
    const model = wrapIn(rank)(frozen, 'only');
    const data = new Uint8Array(numbers.buffer);
    const entry = { dtype: 'f32', shape: [WIDTH, WIDTH], data } as const;
    await loadStateDict(model, new Map([['weight', entry]]));
    const { data: words } = (await stateDict(model)).get('weight')!;
    expect(words).toEqual(encodeBlocks(type, numbers));
  }),
);

it('is a group of its own, and shows its numbers where parameters are summoned', () =>
  onRanks(2, async (rank) => {
    const { device, group: processGroup } = rank;
    const [frozen, trained] = await pair(device);
    const numbers = await frozen!.weight.toArray();
    const model = new Sequential(device, [frozen!, trained!]);
    const groups = [{ name: 'all', params: model.parameters() }];
    const grouping = () =>
      new FullyShardedDataParallel(model, { processGroup, flattenParameters: groups });
    expect(grouping).toThrow(FsdpConfigError);
    expect(grouping).toThrow(/got blocks f32 '0.weight' and f32 '1.weight'/);
    const sharded = new FullyShardedDataParallel(model, { processGroup });
    expect(sharded.units.map(({ name }) => name.split('.').slice(1))).toEqual([
      [],
      ['frozen', 'blocks'],
    ]);
    await summonFullParams(sharded, async () => {
      expect(await frozen!.weight.toArray()).toEqual(numbers);
    });
    expect(device.memory().live.gathered).toBe(0);
  }));
