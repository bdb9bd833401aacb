// Where parameters rest off the device: in host memory, or in a directory where a run starts anew.

import { createHostStore, type ShardStore } from '@shardweave/shard-store';
import { openDiskStore } from '@shardweave/shard-store/node';
import { UsageError } from '../../errors.js';
import type { RunConfig } from '../../run-config.js';
import type { OpenStore, Strategy } from './strategy.js';

/**
 * The key that says that no step has trained what lies beside it, so that the state of an earlier
 * run may be deleted.
 */
const UNTRAINED = 'untrained';
/**
 * The key that names the run whose state it is, by its --out. That run goes on from its saves, and
 * needs nothing here.
 */
const RUN = 'run';

/** Whether a key is one of these two, rather than one of the model's. */
export function isNote(key: string): boolean {
  return key === UNTRAINED || key === RUN;
}

export interface Rest {
  readonly store: ShardStore;
  /** Whether the store can pin values, so that saves need no copy of them. */
  readonly isPinning: boolean;
  /**
   * To be called before each step of the optimizer, whose commit makes the directory's state a
   * trained one.
   */
  beginStep(): Promise<void>;
}

/** Opens a store on disk, or one in host memory. */
export const openStore: OpenStore = async (directory) =>
  directory === undefined ? createHostStore() : openDiskStore({ directory });

export interface RestOptions {
  /** The directory; undefined for host memory. */
  readonly directory: string | undefined;
  readonly config: RunConfig;
  readonly openStore?: OpenStore | undefined;
}

/**
 * Opens a strategy on an empty store; trained state in a directory is deleted only on request. The
 * store belongs to the strategy, or is closed again where `open` fails.
 * @throws {UsageError} where an earlier run's state is there, and --fresh is not given
 */
export async function withRest(
  options: RestOptions,
  open: (rest: Rest) => Promise<Strategy>,
): Promise<Strategy> {
  const { directory, config } = options;
  const store = await (options.openStore ?? openStore)(directory);
  try {
    return await open(
      directory === undefined
        ? { store, isPinning: false, beginStep: async () => {} }
        : await startAnew(store, directory, config),
    );
  } catch (error) {
    await store.close();
    throw error;
  }
}

async function startAnew(
  store: ShardStore,
  directory: string,
  { fresh, out: run = '', resume }: RunConfig,
): Promise<Rest> {
  const isResumed = resume !== undefined && run !== '';
  const keys = store.keys();
  const isOwn = isResumed && (await runIn(store)) === run;
  if (keys.length > 0 && !keys.includes(UNTRAINED) && !fresh && !isOwn) {
    throw new UsageError(
      `--offload-dir: ${directory} holds the state of an earlier run, which starting anew would delete. Give another directory, or --fresh to delete it.`,
    );
  }
  await Promise.all(keys.map((key) => store.delete(key)));
  await store.write(RUN, new TextEncoder().encode(run));
  await store.write(UNTRAINED, new Uint8Array(0));
  let isTrained = false;
  const pinned = await store.pin?.(RUN);
  await pinned?.release();
  return {
    store,
    isPinning: pinned !== undefined,
    beginStep: async () => {
      if (!isTrained) {
        await store.delete(UNTRAINED);
      }
      isTrained = true;
    },
  };
}

async function runIn(store: ShardStore): Promise<string | undefined> {
  const byteLength = store.byteLength(RUN);
  if (byteLength === undefined) {
    return undefined;
  }
  const bytes = new Uint8Array(byteLength);
  await store.read(RUN, bytes);
  return new TextDecoder().decode(bytes);
}
