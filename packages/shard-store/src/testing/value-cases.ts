// Conformance: what comes back, in which order, and who owns the arrays.

import {
  check,
  checkBytes,
  checkContents,
  checkValue,
  pattern,
  rejection,
  type StoreCase,
} from './harness.js';

const MIB = 2 ** 20;
/** Lengths around the sizes that stores cut values into. */
const SIZES = [0, 1, 1023, MIB - 1, MIB, MIB + 1, 3 * MIB + 5] as const;

export const valueCases: readonly StoreCase[] = [
  {
    name: 'values of any size come back, and are replaced by shorter and longer ones',
    needsReopen: false,
    run: async ({ create }) => {
      const store = await create();
      for (const [index, size] of [...SIZES, ...SIZES.toReversed()].entries()) {
        const value = pattern(size, index);
        await store.write('one', value);
        await checkContents(store, { one: value });
      }
      await store.close();
    },
  },
  {
    name: 'any range of a value can be read',
    needsReopen: false,
    run: async ({ create }) => {
      const store = await create();
      const value = pattern(2 * MIB + 77, 5);
      await store.write('one', value);
      const edges = [0, 1, 4097, MIB - 1, MIB, MIB + 1, 2 * MIB, 2 * MIB + 77];
      for (const offset of edges) {
        for (const end of edges.filter((edge) => edge >= offset)) {
          const into = new Uint8Array(end - offset + 2).fill(1);
          await store.read('one', into.subarray(1, -1), { offset });
          checkBytes(into.subarray(1, -1), value.subarray(offset, end), `${offset} to ${end}`);
          check(into[0] === 1 && into.at(-1) === 1, 'wrote beside the range');
        }
      }
      await store.close();
    },
  },
  {
    name: 'operations on a key take effect in the order of their calls',
    needsReopen: false,
    run: async ({ create }) => {
      const store = await create();
      const values = [3 * MIB, 5, MIB + 3].map(pattern);
      const read = values.map((value) => new Uint8Array(value.byteLength));
      const pending: Promise<void>[] = [];
      for (const [index, value] of values.entries()) {
        pending.push(store.write('one', value), store.read('one', read[index]!));
      }
      pending.push(store.delete('one'));
      const missing = rejection(store.read('one', new Uint8Array(1)), 'UNKNOWN_KEY');
      pending.push(store.write('one', values[1]!));
      await Promise.all([...pending, missing]);
      for (const [index, value] of values.entries()) {
        checkBytes(read[index]!, value, `${index}`);
      }
      await checkContents(store, { one: values[1]! });
      await store.close();
    },
  },
  {
    name: 'many keys at once',
    needsReopen: false,
    run: async ({ create }) => {
      const store = await create();
      const expected = Object.fromEntries(
        Array.from({ length: 60 }, (_, index) => [`key ${index}`, pattern(index * 1001, index)]),
      );
      const writes = Object.entries(expected).map(([key, value]) => store.write(key, value));
      await Promise.all(writes);
      const reads = Object.entries(expected).map(([key, value]) => checkValue(store, key, value));
      await Promise.all(reads);
      await checkContents(store, expected);
      await store.close();
    },
  },
  {
    name: 'parts of several values can be read at once',
    needsReopen: false,
    run: async ({ create }) => {
      const store = await create();
      const values = Array.from({ length: 6 }, (_, index) => pattern(MIB + 50, index));
      await Promise.all(values.map((value, index) => store.write(`${index}`, value)));
      for (const offset of [7, MIB - 20]) {
        const reads = values.map(async (value, index) => {
          const into = new Uint8Array(40);
          await store.read(`${index}`, into, { offset });
          checkBytes(into, value.subarray(offset, offset + 40), `'${index}' from ${offset} on`);
        });
        await Promise.all(reads);
      }
      await store.close();
    },
  },
  {
    name: "arrays are the caller's again when the promise settles",
    needsReopen: false,
    run: async ({ create }) => {
      const store = await create();
      const value = pattern(MIB + 9, 3);
      const given = value.slice();
      await store.write('one', given);
      given.fill(0);
      const first = new Uint8Array(value.byteLength);
      await store.read('one', first);
      checkBytes(first, value, 'after the written array changed');
      first.fill(0);
      await checkValue(store, 'one', value);
      await store.close();
    },
  },
  {
    name: 'an array that is given away is the value until the next write',
    needsReopen: false,
    run: async ({ create }) => {
      const store = await create();
      for (const seed of [4, 5]) {
        const value = pattern(5003, seed);
        await store.write('one', value.slice(), { isGiven: true });
        await checkValue(store, 'one', value);
        const next = pattern(5003, seed + 10);
        const kept = next.slice();
        await store.write('one', kept);
        kept.fill(0);
        await checkValue(store, 'one', next);
      }
      await store.close();
    },
  },
  {
    name: 'arrays may be views at any place, of shared memory too',
    needsReopen: false,
    run: async ({ create }) => {
      const store = await create();
      for (const buffer of [new ArrayBuffer(5000), new SharedArrayBuffer(5000)]) {
        const value = pattern(4001, 8);
        const view = new Uint8Array(buffer, 3, 4001);
        view.set(value);
        await store.write('one', view);
        view.fill(0);
        await store.read('one', view);
        checkBytes(view, value, 'the view');
        const rest = new Uint8Array(buffer, 4004);
        check(
          new Uint8Array(buffer, 0, 3).every((byte) => byte === 0),
          'wrote before the view',
        );
        check(
          rest.every((byte) => byte === 0),
          'wrote behind the view',
        );
      }
      await store.close();
    },
  },
  {
    name: 'keys may hold any characters',
    needsReopen: false,
    run: async ({ create }) => {
      const store = await create();
      const keys = [
        '../up',
        'a/b',
        '__proto__',
        'constructor',
        ' ',
        '\u0000',
        'x'.repeat(400),
        '1',
      ];
      for (const [index, key] of keys.entries()) {
        await store.write(key, pattern(10 + index, index));
      }
      await store.commit();
      for (const [index, key] of keys.entries()) {
        await checkValue(store, key, pattern(10 + index, index));
      }
      check(store.keys().length === keys.length, `got the keys ${store.keys()}`);
      await store.close();
    },
  },
];
