// The reduce-scatter bucketer is tested by itself: its sums, when reductions start, and the order
// of results.

import type { ProcessGroup } from '@shardweave/collectives';
import type { Device, Storage } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { onRanks, type Rank } from '../../../tooling/test-kit/index.ts';
import { RankGroups } from '../src/ranks/rank-groups.js';
import { ReduceScatterBucketer } from '../src/unit/reduce-scatter-bucketer.js';
import { openLinks, type UnitLinks } from '../src/unit/unit-links.js';

const F32 = 4;
const MIB = 2 ** 20;

interface Bench {
  readonly bucketer: ReduceScatterBucketer;
  readonly links: UnitLinks;
  /** Names and results, in the order in which they were delivered. */
  readonly results: { readonly name: string; readonly values: Float32Array }[];
  /**
   * Adds a gradient of `length` elements for each rank; element i of rank r's shard is value(i, r).
   */
  add(name: string, length: number, options?: { readonly isBucketed?: boolean }): void;
}

async function bench(rank: Rank, capBytes: number, mostBytes = Infinity): Promise<Bench> {
  const { group, worldSize, device } = rank;
  const groups = new RankGroups({ processGroup: group, processGroupReduceScatter: 'default' });
  const links = await openLinks(groups);
  const bucketer = new ReduceScatterBucketer({
    capBytes,
    mostBytes: () => mostBytes,
    identity: (names) => names.join(' + '),
  });
  const results: Bench['results'] = [];
  const add: Bench['add'] = (name, length, { isBucketed = true } = {}) => {
    const whole = filled(device, name.length, worldSize, length, rank.rank);
    const onReduced = ([bytes]: readonly Uint8Array[]) => {
      results.push({ name, values: new Float32Array(bytes!.slice().buffer) });
    };
    bucketer.add({ name, whole, worldSize, isWhole: false, links, isBucketed, onReduced });
    whole.release();
  };
  return { bucketer, links, results, add };
}

/**
 * Returns the value that rank `from` adds to element i of rank `owner`'s shard. All are small
 * integers, so sums are exact.
 */
function value(seed: number, from: number, owner: number, i: number): number {
  return ((seed * 31 + from * 7 + owner * 3 + i) % 17) - 8;
}

function filled(device: Device, seed: number, worldSize: number, length: number, from: number) {
  const whole: Storage = device.storage(worldSize * length, 'f32', 'gradient');
  whole.fill();
  const values = Float32Array.from({ length: worldSize * length }, (_, k) =>
    value(seed, from, Math.floor(k / length), k % length),
  );
  whole.write(new Uint8Array(values.buffer));
  return whole;
}

function expectSums({ results }: Bench, rank: Rank, lengths: Readonly<Record<string, number>>) {
  for (const { name, values } of results) {
    expect(values, name).toHaveLength(lengths[name]!);
    for (const i of [0, 1, values.length >> 1, values.length - 1]) {
      let sum = 0;
      for (let from = 0; from < rank.worldSize; from++) {
        sum += value(name.length, from, rank.rank, Math.min(i, values.length - 1));
      }
      expect(values[Math.min(i, values.length - 1)], `${name}[${i}]`).toBe(sum);
    }
  }
}

const reductions = (group: ProcessGroup) => group.stats().reduceScatters;
const names = ({ results }: Bench) => results.map(({ name }) => name);

describe.each([0, 0.25 * MIB])('a cap of %i bytes', (capBytes) => {
  it.each([1, 262_144])('sums of gradients of %i elements a rank are right', (length) =>
    onRanks(2, async (rank) => {
      const it = await bench(rank, capBytes);
      it.add('x', length);
      it.add('yy', length);
      await it.bucketer.finish();
      expect(names(it)).toEqual(['x', 'yy']);
      expectSums(it, rank, { x: length, yy: length });
      const isShared = capBytes > 0 && length === 1;
      expect(reductions(rank.group)).toBe(isShared ? 1 : 2);
    }),
  );
});

describe('a bucketer with room for 8 elements a rank', () => {
  const capBytes = (rank: Rank) => 8 * F32 * rank.worldSize;

  it('starts nothing while there is room, then the full buckets, with results in order', () =>
    onRanks(3, async (rank) => {
      const it = await bench(rank, capBytes(rank));
      it.add('a', 3);
      it.add('bb', 4);
      expect(it.bucketer.numStarted).toBe(0);
      it.add('ccc', 2); // The sum 3 + 4 + 2 exceeds 8.
      expect(it.bucketer.numStarted).toBe(1);
      expect(it.results).toEqual([]);
      await it.bucketer.finish();
      expect(names(it)).toEqual(['a', 'bb', 'ccc']);
      expectSums(it, rank, { a: 3, bb: 4, ccc: 2 });
      expect(reductions(rank.group)).toBe(2);
      // Only the filled part went over the wire, to two other ranks.
      expect(rank.group.stats().bytesSent).toBe(2 * (3 + 4 + 2) * F32);
    }));

  it('takes a gradient that exactly fills the bucket, and starts it', () =>
    onRanks(2, async (rank) => {
      const it = await bench(rank, capBytes(rank));
      it.add('a', 5);
      it.add('bb', 3);
      expect(it.bucketer.numStarted).toBe(1);
      it.add('ccc', 1);
      it.add('whole', 8); // This fills a bucket alone, and starts after the bucket before it.
      expect(it.bucketer.numStarted).toBe(3);
      await it.bucketer.finish();
      expect(names(it)).toEqual(['a', 'bb', 'ccc', 'whole']);
      expectSums(it, rank, { a: 5, bb: 3, ccc: 1, whole: 8 });
      expect(reductions(rank.group)).toBe(3);
    }));

  it('a large gradient overtakes small ones that wait, which still share a bucket', () =>
    onRanks(2, async (rank) => {
      const it = await bench(rank, capBytes(rank));
      it.add('a', 2);
      it.add('large', 9);
      expect(it.bucketer.numStarted).toBe(1);
      it.add('bb', 2);
      await it.bucketer.finish();
      expect(names(it)).toEqual(['large', 'a', 'bb']);
      expectSums(it, rank, { large: 9, a: 2, bb: 2 });
      expect(reductions(rank.group)).toBe(2);
    }));

  it('a gradient that asks for no bucket starts at once and alone', () =>
    onRanks(2, async (rank) => {
      const it = await bench(rank, capBytes(rank));
      it.add('a', 2);
      it.add('alone', 2, { isBucketed: false });
      expect(it.bucketer.numStarted).toBe(1);
      await it.bucketer.finish();
      expect(names(it)).toEqual(['alone', 'a']);
    }));

  it('flushing an empty bucket does nothing, before and after gradients', () =>
    onRanks(2, async (rank) => {
      const it = await bench(rank, capBytes(rank));
      it.bucketer.flush();
      await it.bucketer.finish();
      it.add('a', 1);
      await it.bucketer.finish();
      it.bucketer.flush();
      await it.bucketer.finish();
      expect(names(it)).toEqual(['a']);
      expect(reductions(rank.group)).toBe(1);
    }));

  it('holds a host buffer only while something waits or is under way, and the same one again', () =>
    onRanks(2, async (rank) => {
      const it = await bench(rank, capBytes(rank));
      const { hostBuffers } = it.links;
      const taken: Uint8Array[] = [];
      const take = hostBuffers.take.bind(hostBuffers);
      hostBuffers.take = (byteLength) => {
        const buffer = take(byteLength);
        taken.push(buffer);
        return buffer;
      };
      for (let backward = 0; backward < 3; backward++) {
        it.add('a', 3);
        it.add('bb', 3);
        await it.bucketer.finish();
      }
      expect(taken.map(({ byteLength }) => byteLength)).toEqual([64, 32, 64, 32, 64, 32]);
      expect(hostBuffers.numMade).toBe(2);
    }));
});

it('a bucket is not larger than all that can come', () =>
  onRanks(2, async (rank) => {
    const it = await bench(rank, 25 * MIB, 2 * 5 * F32);
    it.add('a', 2);
    expect(it.bucketer.numStarted).toBe(0);
    it.add('bb', 3);
    expect(it.bucketer.numStarted).toBe(1);
    await it.bucketer.finish();
    expectSums(it, rank, { a: 2, bb: 3 });
  }));

it('forgets what waits when it is reset', () =>
  onRanks(2, async (rank) => {
    const it = await bench(rank, MIB);
    it.add('a', 2);
    it.bucketer.reset();
    it.add('bb', 2);
    await it.bucketer.finish();
    expect(names(it)).toEqual(['bb']);
    expectSums(it, rank, { bb: 2 });
  }));

it('a read that fails after a reset ends no process', async () => {
  const unhandled: unknown[] = [];
  const note = (reason: unknown) => unhandled.push(reason);
  process.on('unhandledRejection', note);
  await onRanks(1, async (rank) => {
    const { bucketer, links } = await bench(rank, MIB);
    const whole = filled(rank.device, 1, 1, 2, 0);
    whole.read = () => Promise.reject(new Error('the device is lost'));
    const onReduced = () => undefined;
    bucketer.add({
      name: 'a',
      whole,
      worldSize: 1,
      isWhole: false,
      links,
      isBucketed: true,
      onReduced,
    });
    whole.release();
    bucketer.reset(); // A failed backward does this.
    await new Promise((resolve) => setImmediate(resolve));
  });
  process.off('unhandledRejection', note);
  expect(unhandled).toEqual([]);
});
