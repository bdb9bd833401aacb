import { createHostStore, type ShardStore } from '@shardweave/shard-store';
import { nodeFiles, openDiskStore } from '@shardweave/shard-store/node';
import { type StoreHarness, storeCases } from '@shardweave/shard-store/testing';
import { diskFull, interceptFiles } from '@shardweave/shard-store/testing-node';
import { describe, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';

const hostHarness: StoreHarness = {
  name: 'host memory',
  create: async (options) => createHostStore(options),
};

/** Returns a file system on which the values of a store may take `maxBytes`. */
function smallDisk(maxBytes: number) {
  const sizes = new Map<string, number>();
  return interceptFiles(({ operation, path, end = 0 }) => {
    if (!/\d{6}\.\d$/.test(path)) {
      return;
    }
    if (operation === 'unlink') {
      sizes.delete(path);
    }
    if (operation === 'truncate') {
      sizes.set(path, end);
    }
    if (operation !== 'write') {
      return;
    }
    const others = [...sizes].filter(([other]) => other !== path);
    const wanted = others.reduce((sum, [, size]) => sum + size, end);
    if (wanted > maxBytes) {
      throw diskFull(path);
    }
    sizes.set(path, Math.max(end, sizes.get(path) ?? 0));
  });
}

function diskHarness(fsync: boolean): StoreHarness {
  const directories = new Map<ShardStore, string>();
  const open = async (directory: string, files = nodeFiles) => {
    const store = await openDiskStore({ directory, fsync, files });
    directories.set(store, directory);
    return store;
  };
  return {
    name: fsync ? 'disk with fsync' : 'disk',
    create: async ({ maxBytes } = {}) =>
      open(newFolder(), maxBytes === undefined ? nodeFiles : smallDisk(maxBytes)),
    reopen: async (store) => {
      await store.close();
      return open(directories.get(store)!);
    },
  };
}

describe.each([hostHarness, diskHarness(false), diskHarness(true)])('$name', (harness) => {
  const cases = storeCases.filter((one) => !one.needsReopen || harness.reopen);
  it.each(cases.map((one) => [one.name, one] as const))('%s', (_, one) => one.run(harness));
});
