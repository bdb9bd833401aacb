// Conformance: which calls reject, with which code, and that a failure harms nothing.

import type { StoreIncompleteError } from '../errors.js';
import type { ShardStore } from '../store.js';
import { check, checkContents, pattern, rejection, type StoreCase } from './harness.js';

const KIB = 1024;
/** A value that is larger than the cap of any store below. */
const TOO_LONG = pattern(301 * KIB, 9);

export const failureCases: readonly StoreCase[] = [
  {
    name: "a caller's mistakes reject with their code and change nothing",
    needsReopen: false,
    run: async ({ create }) => {
      const store = await create();
      const one = pattern(10, 1);
      await store.write('one', one);
      await rejection(store.read('two', new Uint8Array(1)), 'UNKNOWN_KEY');
      await rejection(store.read('one', new Uint8Array(11)), 'USAGE');
      await rejection(store.read('one', new Uint8Array(1), { offset: 10 }), 'USAGE');
      await rejection(store.read('one', new Uint8Array(1), { offset: -1 }), 'USAGE');
      await rejection(store.read('one', new Uint8Array(1), { offset: 0.5 }), 'USAGE');
      await rejection(store.write('', one), 'USAGE');
      for (const array of [
        new Float32Array([1.5, 2]),
        [1, 2],
        one.buffer,
        new DataView(one.buffer),
      ]) {
        const wrong = array as unknown as Uint8Array; // plain JavaScript can pass anything
        await rejection(store.write('one', wrong), 'USAGE');
        await rejection(store.read('one', wrong), 'USAGE');
      }
      check(store.byteLength('two') === undefined, 'a length of a key that is not there');
      await store.delete('two');
      await checkContents(store, { one });
      await store.close();
    },
  },
  {
    name: 'close waits for what is pending, and later calls reject',
    needsReopen: false,
    run: async ({ create }) => {
      const store = await create();
      let isWritten = false;
      const write = store.write('one', pattern(3_000_000, 1)).then(() => {
        isWritten = true;
      });
      await Promise.all([store.close(), store.close()]);
      check(isWritten, 'closed before a pending write was done');
      await write;
      await rejection(store.write('one', pattern(1, 1)), 'CLOSED');
      await rejection(store.read('one', new Uint8Array(1)), 'CLOSED');
      await rejection(store.delete('one'), 'CLOSED');
      await rejection(store.withdraw('one'), 'CLOSED');
      await rejection(store.commit(), 'CLOSED');
      await store.close();
    },
  },
  {
    name: 'a full store keeps every value it had, and commits none of half a step',
    needsReopen: false,
    run: async ({ create }) => {
      const store = await create({ maxBytes: 300 * KIB });
      const first = pattern(64 * KIB, 1);
      const expected: Record<string, Uint8Array> = { first };
      await store.write('first', first);
      await store.commit();
      await rejection(store.write('first', pattern(301 * KIB, 2)), 'FULL');
      await checkContents(store, expected);
      const incomplete = await rejection(store.commit(), 'INCOMPLETE');
      check((incomplete as StoreIncompleteError).keys.join() === 'first', incomplete.message);
      check(store.generation === 1, `generation ${store.generation} after a failed commit`);
      await store.write('first', first);
      const failed = await fill(store, expected);
      await checkContents(store, expected);
      await rejection(store.commit(), 'INCOMPLETE');
      await store.delete(failed);
      await store.commit();
      await checkContents(store, expected);
      await store.close();
    },
  },
  {
    name: 'a key that is deleted gives its room to others',
    needsReopen: false,
    run: async ({ create }) => {
      const store = await create({ maxBytes: 300 * KIB });
      for (let round = 0; round < 4; round++) {
        const value = pattern(160 * KIB, round);
        await store.write(`key ${round}`, value);
        await store.commit();
        await rejection(store.write('too much', value), 'FULL');
        await checkContents(store, { [`key ${round}`]: value });
        await store.withdraw('too much');
        await store.delete(`key ${round}`);
        await store.commit();
      }
      await store.close();
    },
  },
  {
    name: 'a failed write that is withdrawn holds up no commit, and the value before it stays',
    needsReopen: false,
    run: async ({ create, reopen }) => {
      let store = await create({ maxBytes: 300 * KIB });
      const [old, changed] = [pattern(16 * KIB, 1), pattern(16 * KIB, 2)];
      await Promise.all([store.write('committed', old), store.write('changed', old)]);
      await store.commit();
      await store.write('changed', changed);
      const keys = ['committed', 'changed', 'absent'];
      for (const key of keys) {
        await rejection(store.write(key, TOO_LONG), 'FULL');
      }
      for (const [index, key] of keys.entries()) {
        const incomplete = (await rejection(store.commit(), 'INCOMPLETE')) as StoreIncompleteError;
        const left = keys.slice(index).join();
        check(incomplete.keys.join() === left, `failures of ${incomplete.keys}, not of ${left}`);
        await store.withdraw(key);
      }
      await store.commit();
      check(store.generation === 2, `generation ${store.generation} after the second commit`);
      await checkContents(store, { committed: old, changed });
      if (reopen) {
        store = await reopen(store);
        await checkContents(store, { committed: old, changed });
      }
      await store.close();
    },
  },
  {
    name: 'a withdrawal counts for the writes called before it, and only for failed ones',
    needsReopen: false,
    run: async ({ create }) => {
      const store = await create({ maxBytes: 300 * KIB });
      const one = pattern(KIB, 1);
      const write = store.write('one', one);
      await Promise.all([write, store.withdraw('one'), store.withdraw('nobody wrote it')]);
      await checkContents(store, { one });
      const early = [store.write('one', TOO_LONG), store.withdraw('one'), store.commit()];
      await rejection(early[0]!, 'FULL');
      await Promise.all(early.slice(1));
      const late = [store.withdraw('one'), store.write('one', TOO_LONG), store.commit()];
      await Promise.all([late[0], rejection(late[1]!, 'FULL'), rejection(late[2]!, 'INCOMPLETE')]);
      await checkContents(store, { one });
      await store.write('one', one.subarray(1));
      await store.commit();
      check(store.generation === 2, `generation ${store.generation} after the second commit`);
      await checkContents(store, { one: one.subarray(1) });
      await store.close();
    },
  },
];

/**
 * Writes values until the store is full, and notes those that it took; returns the key that it did
 * not take.
 */
async function fill(store: ShardStore, expected: Record<string, Uint8Array>): Promise<string> {
  for (let index = 0; index < 10; index++) {
    const [key, value] = [`key ${index}`, pattern(40 * KIB, index)];
    try {
      await store.write(key, value);
      expected[key] = value;
    } catch (error) {
      await rejection(Promise.reject(error), 'FULL');
      return key;
    }
  }
  throw new Error('expected a full store, but it took 464 KiB');
}
