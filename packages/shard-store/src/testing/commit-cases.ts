// Conformance: commits, and what the next owner finds.

import { check, checkContents, pattern, type StoreCase } from './harness.js';

const MIB = 2 ** 20;

export const commitCases: readonly StoreCase[] = [
  {
    name: 'commits are counted and change no value',
    needsReopen: false,
    run: async ({ create }) => {
      const store = await create();
      const [one, two] = [pattern(MIB + 1, 1), pattern(7, 2)];
      const generations = [store.generation];
      await store.commit();
      await Promise.all([store.write('one', one), store.write('two', two), store.commit()]);
      generations.push(store.generation);
      check(generations.join() === '0,2', `before and after two commits: ${generations}`);
      await Promise.all([store.commit(), store.commit(), store.commit()]);
      check(store.generation === 5, `generation ${store.generation} after three more at once`);
      await checkContents(store, { one, two });
      await store.close();
    },
  },
  {
    name: 'the next owner finds the last generation, whole',
    needsReopen: true,
    run: async ({ create, reopen }) => {
      let store = await create();
      const kept = pattern(2 * MIB + 3, 1);
      await Promise.all([store.write('kept', kept), store.write('gone', pattern(9, 1))]);
      await store.commit();
      for (let step = 1; step <= 4; step++) {
        await store.write('state', pattern(MIB + step, step));
        await store.write('state', pattern(MIB + 2 * step, step + 1)); // twice in a step
        await store.delete('gone');
        await store.commit();
        store = await reopen!(store);
        check(store.generation === step + 1, `generation ${store.generation} of step ${step}`);
        await checkContents(store, { kept, state: pattern(MIB + 2 * step, step + 1) });
      }
      await store.close();
    },
  },
  {
    name: 'what was not committed is gone for the next owner',
    needsReopen: true,
    run: async ({ create, reopen }) => {
      let store = await create();
      await Promise.all([store.write('one', pattern(5, 1)), store.write('two', pattern(5, 2))]);
      await store.commit();
      for (const seed of [3, 6, 7]) {
        await store.write('one', pattern(MIB, seed));
      }
      await store.write('three', pattern(5, 4));
      await store.delete('two');
      store = await reopen!(store);
      await checkContents(store, { one: pattern(5, 1), two: pattern(5, 2) });
      await store.write('one', pattern(6, 5)); // over what the last owner left there
      await store.commit();
      store = await reopen!(store);
      await checkContents(store, { one: pattern(6, 5), two: pattern(5, 2) });
      await store.close();
    },
  },
  {
    name: 'close waits for a commit that nobody awaited',
    needsReopen: true,
    run: async ({ create, reopen }) => {
      let store = await create();
      const value = pattern(MIB, 1);
      const pending = [store.write('one', value), store.commit(), store.commit()];
      store = await reopen!(store);
      check(store.generation === 2, `generation ${store.generation} after two commits`);
      await checkContents(store, { one: value });
      await Promise.all(pending);
      await store.close();
    },
  },
  {
    name: 'a commit takes in what was called before it and nothing called after it',
    needsReopen: true,
    run: async ({ create, reopen }) => {
      let store = await create();
      const after = [
        store.write('one', pattern(3 * MIB, 1)),
        store.write('two', pattern(3, 1)),
        store.commit(),
        store.write('one', pattern(4, 2)),
        store.delete('two'),
        store.write('three', pattern(4, 3)),
      ];
      await Promise.all(after);
      await checkContents(store, { one: pattern(4, 2), three: pattern(4, 3) });
      store = await reopen!(store);
      await checkContents(store, { one: pattern(3 * MIB, 1), two: pattern(3, 1) });
      await store.close();
    },
  },
  {
    name: 'keys that come after a deletion share nothing with those that stayed',
    needsReopen: true,
    run: async ({ create, reopen }) => {
      let store = await create();
      const expected: Record<string, Uint8Array> = {};
      const write = async (key: string, seed: number) => {
        expected[key] = pattern(100 + seed, seed);
        await store.write(key, expected[key]);
      };
      for (const [index, key] of ['first', 'middle', 'last'].entries()) {
        await write(key, index);
      }
      await store.commit();
      for (const [index, gone] of ['middle', 'first'].entries()) {
        await store.delete(gone);
        delete expected[gone];
        await store.commit();
        store = await reopen!(store);
        await write(`new ${index}`, 10 + index);
        await checkContents(store, expected);
        await store.commit();
        await write('last', 20 + index); // into its other file
        await checkContents(store, expected);
        await store.commit();
        store = await reopen!(store);
        await checkContents(store, expected);
      }
      await store.close();
    },
  },
];
