// Sharded runs that leave their parts on disk, and begin with such: nothing is ever whole on one rank.

import { CheckpointError } from '@shardweave/checkpoint';
import { FsdpStateDictError } from '@shardweave/fsdp';
import { StateDictError } from '@shardweave/nn';
import { UsageError } from '../errors.js';
import type { RunConfig } from '../run-config.js';
import type { Strategy } from './strategies/strategy.js';

/**
 * Weights and optimizer state of --load-shards, whatever the number of ranks that saved them; the
 * schedule and the rows start anew. Collective.
 *
 * @throws {UsageError} where they are those of another model
 */
export async function readShards(
  { loadShardsDir: directory }: RunConfig,
  strategy: Strategy,
): Promise<void> {
  if (directory === undefined) {
    return;
  }
  const { optimizer } = strategy;
  // A save carries the rates and decays of its own run; this one has been given its own.
  const given = optimizer.groups.map(({ params: _, ...options }) => options);
  try {
    await strategy.loadShards?.(directory);
  } catch (cause) {
    const isUnfit =
      cause instanceof CheckpointError ||
      cause instanceof StateDictError ||
      cause instanceof FsdpStateDictError;
    if (!isUnfit) {
      throw cause;
    }
    throw new UsageError(
      `--load-shards: ${directory} can't be used. ${cause.message} Give the model that was saved.`,
      { cause },
    );
  }
  for (const [i, options] of given.entries()) {
    Object.assign(optimizer.groups[i]!, options);
  }
}

/** Writes each rank's part to --save-shards, the index last. Collective. */
export async function writeShards(
  { saveShardsDir: directory, steps }: RunConfig,
  { strategy, numericClass }: { readonly strategy: Strategy; readonly numericClass: string },
): Promise<void> {
  if (directory !== undefined) {
    await strategy.saveShards?.(directory, { steps, numericClass });
  }
}
