// Runs that leave weights and optimizer state on disk, and begin with such, whatever strategy saved them:
// each rank writes and reads what it holds, so nothing is ever whole on one that has a part.

import { CheckpointError } from '@shardweave/checkpoint';
import { UsageError } from '../errors.js';
import { type BaseModel, baseModelOf } from '../model/base-model.js';
import type { RunConfig } from '../run-config.js';
import type { Strategy } from './strategies/strategy.js';

/**
 * Weights and optimizer state of --load-shards, whatever strategy on however many ranks saved them;
 * the schedule and the rows start anew. Collective.
 *
 * @throws {UsageError} where they are those of another model
 */
export async function readSave(config: RunConfig, strategy: Strategy): Promise<void> {
  const { loadShardsDir: directory } = config;
  if (directory === undefined) {
    return;
  }
  const { optimizer } = strategy;
  // A save carries the rates and decays of its own run; this one has been given its own.
  const given = optimizer.groups.map(({ params: _, ...options }) => options);
  try {
    const extra = await strategy.load(directory);
    await requireBase(config, extra.base as BaseModel | undefined);
  } catch (cause) {
    if (!(cause instanceof CheckpointError)) {
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

/** Adapters are nothing without the weights that they were trained beside. */
async function requireBase(config: RunConfig, saved: BaseModel | undefined): Promise<void> {
  if (config.lora === undefined) {
    return;
  }
  const own = await baseModelOf(config);
  if (saved?.sha256 !== own.sha256) {
    throw new UsageError(
      `--load-shards: ${config.loadShardsDir} holds adapters of another base model, ${saved?.path ?? 'which it does not name'} (sha256 ${saved?.sha256 ?? 'unknown'}), got ${own.path} (${own.sha256}). Give the --model that they were trained on.`,
    );
  }
}

/** Writes what each rank holds to --save-shards, the index last. Collective. */
export async function writeSave(
  config: RunConfig,
  { strategy, numericClass }: { readonly strategy: Strategy; readonly numericClass: string },
): Promise<void> {
  const { saveShardsDir: directory, steps, lora } = config;
  if (directory !== undefined) {
    const base = lora === undefined ? {} : { base: await baseModelOf(config) };
    await strategy.save(directory, { steps, numericClass, ...base });
  }
}
