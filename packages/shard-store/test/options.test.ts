// If stores don't know an option, or not with that value, the error names it.

import { createHostStore, StoreUsageError } from '@shardweave/shard-store';
import { type DiskStoreOptions, openDiskStore } from '@shardweave/shard-store/node';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';

describe('options', () => {
  it.each<[object, RegExp]>([
    [{ sync: true }, /fsync.*got 'sync'/],
    [{ max_concurrent: 2 }, /got 'max_concurrent'/],
    [{ directory: '' }, /directory: expected a path/],
    [{ directory: undefined }, /directory: expected a path/],
    [{ maxConcurrent: 0 }, /maxConcurrent/],
    [{ maxConcurrent: 1.5 }, /maxConcurrent/],
  ])('openDiskStore refuses %o', async (options, message) => {
    const all = { directory: newFolder(), ...options } as DiskStoreOptions;
    const opening = openDiskStore(all);
    await expect(opening).rejects.toThrow(StoreUsageError);
    await expect(opening).rejects.toThrow(message);
  });

  it.each<[object, RegExp]>([
    [{ maxByte: 5 }, /maxBytes.*got 'maxByte'/],
    [{ maxBytes: 0 }, /maxBytes/],
    [{ maxBytes: Number.NaN }, /maxBytes/],
  ])('createHostStore refuses %o', (options, message) => {
    expect(() => createHostStore(options)).toThrow(StoreUsageError);
    expect(() => createHostStore(options)).toThrow(message);
  });
});

describe('an array given to a host store', () => {
  it('is kept as it is, a part of a larger buffer copied', async () => {
    const store = createHostStore();
    const [whole, part] = [new Uint8Array(8), new Uint8Array(16).subarray(4, 12)];
    await store.write('whole', whole, { isGiven: true });
    await store.write('part', part, { isGiven: true });
    whole.fill(7);
    part.fill(7);
    const into = new Uint8Array(8);
    await store.read('whole', into);
    expect([...into]).toEqual(Array(8).fill(7));
    await store.read('part', into);
    expect([...into]).toEqual(Array(8).fill(0));
    await store.close();
  });
});

describe('maxBytes of a host store', () => {
  it('counts the values that are there, to the byte', async () => {
    const store = createHostStore({ maxBytes: 10 });
    const write = (key: string, byteLength: number) => store.write(key, new Uint8Array(byteLength));
    await write('one', 10);
    await write('one', 10); // This replaces the first value.
    await expect(write('two', 1)).rejects.toMatchObject({ code: 'FULL' });
    await write('one', 4);
    await write('two', 6);
    await expect(write('one', 5)).rejects.toMatchObject({ code: 'FULL' });
    await store.delete('two');
    await write('one', 10);
    await expect(write('one', 11)).rejects.toMatchObject({ code: 'FULL' });
    expect(store.byteLength('one')).toBe(10);
  });
});
