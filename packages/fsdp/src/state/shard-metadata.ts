// What a rank's shards are parts of, as plain data that can be saved beside them.

import { joinPath } from '@shardweave/nn';
import { restShape } from '@shardweave/nn/flat';
import type { DType, Shape } from '@shardweave/tensor-core';
import type { FullyShardedDataParallel } from '../fully-sharded-data-parallel.js';
import { instanceOf } from '../tree/instance.js';
import { isInstance } from '../tree/tree-instance.js';
import { requireEachInOneUnit, requireNoOwnerBeside } from '../unit/own-parameters.js';
import { flatKey } from './local-state-dict.js';

/** One flat parameter of one rank. Counts are in elements. */
export interface FlatMetadata {
  /** Its name in localStateDict. */
  readonly key: string;
  /** Path of the instance's wrapped module. */
  readonly path: string;
  readonly dtype: DType;
  /** Its parameters, in order. */
  readonly names: readonly string[];
  readonly shapes: readonly Shape[];
  readonly offsets: readonly number[];
  /** Elements of all shards together without their padding. */
  readonly elementCount: number;
  /** Elements at the end of this rank's shard that belong to no parameter. */
  readonly padding: number;
  readonly rank: number;
  readonly worldSize: number;
  /** Ranks hold different values (experts): noBroadcastOptimState. */
  readonly isLocal: boolean;
}

/** What must be known of a shard to put whole parameters together from all ranks. */
export interface ShardMetadata {
  readonly format: 'shardweave-shard';
  readonly version: 1;
  readonly rank: number;
  readonly worldSize: number;
  /** All parameters in the bare module's order. */
  readonly parameters: readonly string[];
  readonly flats: readonly FlatMetadata[];
  /** Further names of a parameter, with the one it is saved under. */
  readonly sharedParameters: readonly { readonly name: string; readonly alias: string }[];
  readonly buffers: readonly string[];
}

/** The metadata of what localStateDict gives on this rank; JSON keeps them. No communication. */
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
    for (const { flat, layout, parameters, group } of instance.units) {
      const { shardLength, elementCount, offsets } = layout;
      const owned = Math.min(Math.max(elementCount - group.rank * shardLength, 0), shardLength);
      flats.push({
        key: flatKey(flats.length),
        path,
        dtype: flat.dtype,
        names: parameters.map(({ tensor }) => names.get(tensor)!),
        shapes: parameters.map(({ tensor }) => restShape(tensor)),
        offsets,
        elementCount,
        padding: shardLength - owned,
        rank: group.rank,
        worldSize: group.worldSize,
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
    sharedParameters: aliases(fsdp),
    buffers: fsdp.namedBuffers().map(([name]) => name),
  };
}

function aliases(fsdp: FullyShardedDataParallel): { name: string; alias: string }[] {
  const names = new Map(fsdp.namedParameters().map(([name, tensor]) => [tensor, name]));
  return fsdp.namedModules().flatMap(([path, module]) =>
    [...module.ownParameters()].flatMap(([own, tensor]) => {
      const alias = joinPath(path, own);
      const name = names.get(tensor)!;
      return alias === name ? [] : [{ name, alias }];
    }),
  );
}
