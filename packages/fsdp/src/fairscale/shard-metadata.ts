// Plain data that tell what a rank's shards are parts of, and that can be saved beside them.

import { joinPath } from '@shardweave/nn';
import { restShape } from '@shardweave/nn/flat';
import type { DType, Shape, Tensor } from '@shardweave/tensor-core';
import type { FullyShardedDataParallel } from '../fully-sharded-data-parallel.js';
import { instanceOf } from '../tree/instance.js';
import { requireEachInOneUnit, requireNoOwnerBeside } from '../tree/own-parameters.js';
import { isInstance } from '../tree/tree-instance.js';
import { flatKey } from './local-state-dict.js';

/** One flat parameter on one rank. All counts are in elements. */
export interface FlatMetadata {
  /** Its name in localStateDict. */
  readonly key: string;
  /** The path of the instance's wrapped module. */
  readonly path: string;
  readonly dtype: DType;
  /** The names of its parameters, in order. */
  readonly names: readonly string[];
  readonly shapes: readonly Shape[];
  readonly offsets: readonly number[];
  /** The elements of all shards together without their padding. */
  readonly elementCount: number;
  /** The elements at the end of this rank's shard that belong to no parameter. */
  readonly padding: number;
  readonly rank: number;
  readonly worldSize: number;
  /** Whether ranks hold different values in it (experts); see noBroadcastOptimState. */
  readonly isLocal: boolean;
}

/**
 * What one rank's shards are parts of, as plain data that survive JSON. consolidateShardWeights
 * needs those of all ranks to put whole parameters together.
 */
export interface ShardMetadata {
  readonly format: 'shardweave-shard';
  readonly version: 1;
  readonly rank: number;
  readonly worldSize: number;
  /** All parameters in the bare module's order. */
  readonly parameters: readonly string[];
  readonly flats: readonly FlatMetadata[];
  /**
   * The further names of shared parameters, each with the name that the parameter is saved under.
   */
  readonly sharedParameters: readonly { readonly name: string; readonly alias: string }[];
  readonly buffers: readonly string[];
}

/** The metadata of what localStateDict gives on this rank. They survive JSON. No communication. */
export function localMetadataDict(fsdp: FullyShardedDataParallel): ShardMetadata {
  const root = instanceOf(fsdp);
  requireEachInOneUnit(root);
  requireNoOwnerBeside(root, 'localMetadataDict');
  const named = fsdp.namedParameters();
  const names = new Map(named.map(([name, tensor]) => [tensor, name]));
  const flats: FlatMetadata[] = [];
  for (const [path, module] of fsdp.namedModules()) {
    if (!isInstance(module)) {
      continue;
    }
    const instance = instanceOf(module);
    for (const { flat, layout, parameters, shardIndex: rank } of instance.units) {
      const { shardLength, elementCount, offsets, worldSize } = layout;
      const owned = Math.min(Math.max(elementCount - rank * shardLength, 0), shardLength);
      flats.push({
        key: flatKey(flats.length),
        path,
        dtype: flat.dtype,
        names: parameters.map(({ tensor }) => names.get(tensor)!),
        shapes: parameters.map(({ tensor }) => restShape(tensor)),
        offsets,
        elementCount,
        padding: shardLength - owned,
        rank,
        worldSize,
        isLocal: instance.isLocalTo(root),
      });
    }
  }
  const { rank, worldSize } = fsdp.processGroup;
  return {
    format: 'shardweave-shard',
    version: 1,
    rank,
    worldSize,
    parameters: named.map(([name]) => name),
    flats,
    sharedParameters: aliases(fsdp, names),
    buffers: fsdp.namedBuffers().map(([name]) => name),
  };
}

function aliases(
  fsdp: FullyShardedDataParallel,
  names: ReadonlyMap<Tensor, string>,
): { name: string; alias: string }[] {
  return fsdp.namedModules().flatMap(([path, module]) =>
    [...module.ownParameters()].flatMap(([ownName, tensor]) => {
      const alias = joinPath(path, ownName);
      const name = names.get(tensor)!;
      return alias === name ? [] : [{ name, alias }];
    }),
  );
}
