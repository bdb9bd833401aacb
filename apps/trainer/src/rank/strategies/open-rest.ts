// Where parameters rest on disk: a directory that a run starts anew in.

import type { ShardStore } from '@shardweave/shard-store';
import { openDiskStore } from '@shardweave/shard-store/node';
import { UsageError } from '../../errors.js';
import type { RunConfig } from '../../run-config.js';

/**
 * The store of a directory, empty: a run starts anew, and what is trained is deleted by order alone.
 *
 * @throws {UsageError} where an earlier run's state is there, and --fresh is not given
 */
export async function openRest(directory: string, { isFresh }: RunConfig): Promise<ShardStore> {
  const store = await openDiskStore({ directory });
  const keys = store.keys();
  if (keys.length === 0) {
    return store;
  }
  if (!isFresh) {
    await store.close();
    throw new UsageError(
      `--offload-dir: ${directory} holds the state of an earlier run, which starting anew would delete. Give another directory, or --fresh to delete it.`,
    );
  }
  await Promise.all(keys.map((key) => store.delete(key)));
  return store;
}
