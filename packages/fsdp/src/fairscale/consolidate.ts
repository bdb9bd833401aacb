// Makes whole parameters from the shards of all ranks, offline: with no device and no process
// group, and from any number of shards.

import { byteSize } from '@shardweave/dtypes';
import { type StateDict, StateDictError, type StateEntry } from '@shardweave/nn';
import { elementCountOf } from '@shardweave/tensor-core';
import { allOptional, FLAG, type OptionRules } from '@shardweave/tensor-core/options';
import { checkOptions } from '../check-options.js';
import type { FlatMetadata, ShardMetadata } from './shard-metadata.js';

/**
 * Options of consolidateShardWeights: what is taken from the shards, and whether they may lack
 * anything.
 */
export interface ConsolidateOptions {
  /** Take the first rank's buffers too. Default true. */
  readonly withModuleBuffers?: boolean;
  /** false: a parameter or buffer that a shard lacks is left out. Default true: it is an error. */
  readonly strict?: boolean;
}

const RULES: OptionRules<ConsolidateOptions> = allOptional({
  withModuleBuffers: FLAG,
  strict: FLAG,
});

/**
 * Puts together the state dict of the bare module from each rank's localStateDict and
 * localMetadataDict, which may come in any order of ranks. Each rank's own metadata tell how much
 * of its shard is padding. What each rank holds for itself (experts) is taken from the first one. A
 * shared parameter appears once, as in the bare module's own state dict.
 * @throws {StateDictError} for no shards, for ranks that are missing or appear twice, for metadata
 * that differ, and for shards of another length than their metadata say; where strict also for
 * missing entries
 */
export function consolidateShardWeights(
  shardWeights: readonly ReadonlyMap<string, StateEntry>[],
  shardMetadata: readonly ShardMetadata[],
  options: ConsolidateOptions = {},
): StateDict {
  checkOptions('consolidateShardWeights', options, RULES);
  const { withModuleBuffers = true, strict: isStrict = true } = options;
  const shards = inRankOrder(shardWeights, shardMetadata);
  const [first] = shards as [Shard, ...Shard[]];
  const found: StateDict = new Map();
  first.metadata.flats.forEach((flat, index) => {
    for (const { metadata } of shards) {
      checkAlike(flat, metadata.flats[index]);
    }
    // An instance with a smaller group of its own repeats over the ranks; the first shard of each
    // of its places is taken.
    const parts = Array.from({ length: flat.worldSize }, (_, place) => {
      const shard = shards.find(({ metadata }) => metadata.flats[index]!.rank === place);
      return shardOf(shard ?? first, index, isStrict);
    });
    if (parts.includes(undefined)) {
      return;
    }
    const whole = concatShards(flat, parts as Uint8Array[]);
    flat.names.forEach((name, i) => {
      const shape = flat.shapes[i]!;
      const start = flat.offsets[i]! * byteSize(flat.dtype);
      const data = whole.slice(start, start + elementCountOf(shape) * byteSize(flat.dtype));
      found.set(name, { dtype: flat.dtype, shape, data });
    });
  });
  // The entries come in the order of the bare module, not of the flat parameters.
  const order = first.metadata.parameters.filter((name) => found.has(name));
  const entries: StateDict = new Map(order.map((name) => [name, found.get(name)!]));
  for (const name of withModuleBuffers ? first.metadata.buffers : []) {
    const entry = first.weights.get(name);
    if (entry !== undefined) {
      entries.set(name, entry);
    } else if (isStrict) {
      throw missing(first, name);
    }
  }
  return entries;
}

interface Shard {
  readonly weights: ReadonlyMap<string, StateEntry>;
  readonly metadata: ShardMetadata;
}

function inRankOrder(
  weights: readonly ReadonlyMap<string, StateEntry>[],
  metadata: readonly ShardMetadata[],
): Shard[] {
  if (weights.length === 0 || weights.length !== metadata.length) {
    throw problem(
      `as many shards as metadata, at least one, got ${weights.length} and ${metadata.length}`,
    );
  }
  const shards = weights.map((shard, i) => ({ weights: shard, metadata: metadata[i]! }));
  shards.sort((a, b) => a.metadata.rank - b.metadata.rank);
  const ranks = shards.map((shard) => shard.metadata.rank);
  const [first] = shards as [Shard, ...Shard[]];
  const { worldSize, flats } = first.metadata;
  const isWhole = ranks.length === worldSize && ranks.every((rank, i) => rank === i);
  if (!isWhole) {
    throw problem(`ranks 0 to ${worldSize - 1} of ${worldSize}, got ${ranks.join(', ')}`);
  }
  for (const { metadata: other } of shards) {
    if (other.flats.length === flats.length && other.worldSize === worldSize) {
      continue;
    }
    throw problem(
      `${flats.length} flat parameters over ${worldSize} ranks everywhere, got ${other.flats.length} over ${other.worldSize} of rank ${other.rank}`,
    );
  }
  return shards;
}

function checkAlike(flat: FlatMetadata, other: FlatMetadata | undefined): void {
  const text = ({ key, dtype, names, shapes, offsets, elementCount, worldSize }: FlatMetadata) =>
    JSON.stringify([key, dtype, names, shapes, offsets, elementCount, worldSize]);
  if (other !== undefined && text(other) === text(flat)) {
    return;
  }
  throw problem(`the same parameters in '${flat.key}' of every rank, got different ones`);
}

/** One rank's shard without its padding. */
function shardOf(shard: Shard, index: number, isStrict: boolean): Uint8Array | undefined {
  const { key, padding, elementCount, worldSize, dtype, rank } = shard.metadata.flats[index]!;
  const entry = shard.weights.get(key);
  if (entry === undefined) {
    if (isStrict) {
      throw missing(shard, key);
    }
    return undefined;
  }
  const elements = entry.data.byteLength / byteSize(dtype);
  const before = rank * elements; // shards are equally long
  const owned = Math.min(Math.max(elementCount - before, 0), elements);
  const isFitting = entry.dtype === dtype && owned === elements - padding;
  if (!isFitting || elements * worldSize < elementCount) {
    throw problem(
      `${elementCount} ${dtype} elements over ${worldSize} ranks with ${padding} of padding here, got ${elements} of ${entry.dtype} in '${key}' of rank ${shard.metadata.rank}`,
    );
  }
  return entry.data.subarray(0, owned * byteSize(dtype));
}

function concatShards(flat: FlatMetadata, parts: readonly Uint8Array[]): Uint8Array {
  const whole = new Uint8Array(flat.elementCount * byteSize(flat.dtype));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.byteLength;
  }
  if (at === whole.byteLength) {
    return whole;
  }
  throw problem(`${whole.byteLength} bytes of '${flat.key}' in all shards, got ${at}`);
}

function missing({ metadata }: Shard, name: string): StateDictError {
  return new StateDictError(
    `consolidateShardWeights: expected '${name}' in the shard of rank ${metadata.rank}, got none. With strict: false it is left out.`,
    { missing: [name] },
  );
}

function problem(expected: string): StateDictError {
  return new StateDictError(
    `consolidateShardWeights: expected ${expected}. Pass the localStateDict and localMetadataDict of every rank of one save.`,
  );
}
