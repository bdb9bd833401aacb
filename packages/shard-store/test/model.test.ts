// Random sequences of calls run over a file system that refuses some of its own calls, with owners
// that die. The disk store behaves like a map that remembers its last commit.

import type { ShardStore } from '@shardweave/shard-store';
import { openDiskStore } from '@shardweave/shard-store/node';
import { interceptFiles } from '@shardweave/shard-store/testing-node';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { codeOf, forgetOwner } from './support/steps.ts';

type Values = ReadonlyMap<string, Buffer>;

/** A state that the next owner may find. */
interface Generation {
  readonly number: number;
  readonly values: Values;
}

const key = fc.constantFrom('a', 'b', 'c');
/** The number of file calls that succeed before the others are refused. Mostly none is refused. */
const numAllowed = fc.option(fc.integer({ min: 0, max: 9 }), { freq: 2, nil: Infinity });
const call = fc.oneof(
  { arbitrary: fc.record({ does: fc.constant('write'), key, numAllowed }), weight: 4 },
  { arbitrary: fc.record({ does: fc.constant('delete'), key, numAllowed }), weight: 1 },
  { arbitrary: fc.record({ does: fc.constant('withdraw'), key, numAllowed }), weight: 1 },
  { arbitrary: fc.record({ does: fc.constant('commit'), key, numAllowed }), weight: 3 },
  { arbitrary: fc.record({ does: fc.constantFrom('close', 'die'), key, numAllowed }), weight: 1 },
);

describe.each([false, true])('fsync %s', (fsync) => {
  it('holds what a map would hold, whatever fails in between', async () => {
    const property = fc.asyncProperty(fc.array(call, { maxLength: 24 }), async (calls) => {
      const directory = newFolder();
      let left = Infinity;
      const files = interceptFiles(({ operation }) => {
        if (operation !== 'close' && left-- <= 0) {
          throw new Error('refused');
        }
      });
      const open = () => openDiskStore({ directory, fsync, files });
      let store = await open();
      let last: Generation = { number: 0, values: new Map() };
      /** Commits that were rejected, perhaps after their rename. */
      let unsure: Generation[] = [];
      let current = new Map<string, Buffer>();
      const failed = new Set<string>();
      for (const [index, one] of calls.entries()) {
        const { does, key, numAllowed } = one;
        left = numAllowed;
        if (does === 'write') {
          const value = Buffer.alloc(10 + index, index);
          const outcome = await codeOf(store.write(key, value));
          expect(outcome).toBe(left < 0 ? 'IO' : 'resolved');
          if (outcome === 'resolved') {
            current.set(key, value);
          }
          if (outcome === 'resolved') {
            failed.delete(key);
          } else {
            failed.add(key);
          }
        } else if (does === 'delete') {
          await store.delete(key);
          current.delete(key);
          failed.delete(key);
        } else if (does === 'withdraw') {
          await store.withdraw(key);
          failed.delete(key);
        } else if (does === 'commit') {
          const next = { number: last.number + 1, values: new Map(current) };
          const outcome = await codeOf(store.commit());
          if (failed.size > 0) {
            expect(outcome).toBe('INCOMPLETE');
          } else if (left >= 0) {
            expect(outcome).toBe('resolved');
          }
          if (outcome === 'IO') {
            unsure.push(next);
          }
          if (outcome === 'resolved') {
            [last, unsure] = [next, []];
          }
        } else {
          left = Infinity;
          if (does === 'close') {
            await store.close();
          } else {
            await forgetOwner(directory);
          }
          store = await open();
          last = await foundIn(store, [last, ...unsure]);
          [current, unsure] = [new Map(last.values), []];
          failed.clear();
        }
        left = Infinity;
        expect(store.generation).toBe(last.number);
        expect(await contentsOf(store)).toEqual(current);
      }
      await store.close();
    });
    await fc.assert(property, { seed: 7, numRuns: 60 });
  });
});

async function contentsOf(store: ShardStore): Promise<Map<string, Buffer>> {
  const values = new Map<string, Buffer>();
  for (const name of [...store.keys()].sort()) {
    const value = Buffer.alloc(store.byteLength(name)!);
    await store.read(name, value);
    values.set(name, value);
  }
  return values;
}

/** Returns the one of several generations that the store holds as a whole. */
async function foundIn(store: ShardStore, candidates: readonly Generation[]): Promise<Generation> {
  const found = { number: store.generation, values: await contentsOf(store) };
  expect(candidates.map(({ number, values }) => ({ number, values }))).toContainEqual(found);
  return found;
}
