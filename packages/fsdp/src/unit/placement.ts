// Where shards rest between their uses: on the device, or in a store in host memory or on a disk.

import { type StoredFlatOptions, storeUseOf } from '@shardweave/nn/flat';
import { createHostStore, type ShardStore } from '@shardweave/shard-store';
import type { Device } from '@shardweave/tensor-core';
import { FsdpConfigError } from '../errors.js';
import { callIdentity } from '../ranks/call-identity.js';
import type { RankGroups } from '../ranks/rank-groups.js';

/** Options for where shards, gradients and optimizer state rest between uses. */
export interface ResidenceOptions {
  /**
   * The shards and their optimizer state rest in host memory and come to the device when they are
   * used: gathers start from host bytes, and a step brings one flat parameter at a time. Default
   * false.
   */
  readonly moveParamsToCpu?: boolean;
  /**
   * The reduced gradients rest in host memory, and add up there. Default: as moveParamsToCpu. With
   * moveParamsToCpu it must not be false.
   */
  readonly moveGradsToCpu?: boolean;
  /** Shards, gradients and optimizer state rest in a store: one on a disk, or one of your own. */
  readonly offloadConfig?: OffloadConfig;
}

/** The store that shards rest in, and whether training goes on from what it has. */
export interface OffloadConfig {
  /** The store of this rank. It stays the caller's, who closes it after the module is disposed. */
  readonly store: ShardStore;
  /**
   * true: go on from the store's last generation, with its parameters, buffers, optimizer state and
   * random state of the device in place of initial ones; the model must have the same modules in
   * the same order on the same ranks. false: begin anew, whatever the store has. Default: begin
   * anew, unless the store has a model that has been trained, which is an error.
   */
  readonly resume?: boolean;
}

export interface Placement extends StoredFlatOptions {
  readonly store: ShardStore;
  /** The option `resume` as the caller gave it. */
  readonly asked: boolean | undefined;
  /** Whether the store is the caller's, who may give it to a later process. */
  readonly isGiven: boolean;
}

/** @throws {FsdpConfigError} for options that contradict each other */
export function resolvePlacement(options: ResidenceOptions): Placement | undefined {
  const { moveParamsToCpu, moveGradsToCpu, offloadConfig } = options;
  if (offloadConfig !== undefined && moveParamsToCpu === false) {
    throw new FsdpConfigError(
      'fsdp: expected moveParamsToCpu with offloadConfig, got false. Leave it out: a store takes parameters, gradients and optimizer state.',
    );
  }
  const movesParams = moveParamsToCpu === true || offloadConfig !== undefined;
  const movesGrads = moveGradsToCpu ?? movesParams;
  if (movesParams && !movesGrads) {
    throw new FsdpConfigError(
      'fsdp: expected moveGradsToCpu with moveParamsToCpu or offloadConfig, got false. Leave it out: gradients rest where their parameters do.',
    );
  }
  if (!movesGrads) {
    return undefined;
  }
  const store = offloadConfig?.store ?? createHostStore();
  return {
    use: storeUseOf(store),
    store,
    rests: movesParams ? 'all' : 'gradient',
    resume: offloadConfig?.resume === true,
    asked: offloadConfig?.resume,
    isGiven: offloadConfig !== undefined,
  };
}

/**
 * The prefix of this rank's names in its store. An instance in a group of its own, such as an
 * expert, may have another rank there than the instances around it.
 */
export function rankPrefix({ processGroup, replicateGroup }: RankGroups): string {
  const replica = replicateGroup === undefined ? '' : `replica${replicateGroup.rank}.`;
  return `${replica}rank${processGroup.rank}/`;
}

/** What a rank tells in place of its store's generation where another rank has the store, too. */
const SHARED = -1;

/**
 * Checks that every rank has a store of its own, and where they resume, that all go on from the
 * same step. Collective.
 *
 * Two ranks in one store would commit it twice a step: after a kill between the two it would have
 * the shards of two steps, and nothing would tell, since a store has one generation. Ranks of one
 * process have a device each, so a store with names of models on another device is shared.
 * @throws {FsdpConfigError} on all ranks, naming the ranks or the generations
 */
export async function agreeOnStores(
  placement: Placement,
  groups: RankGroups,
  device: Device,
): Promise<void> {
  const identity = callIdentity('initialize', 'stores');
  const generation = placement.resume ? placement.store.generation : 0;
  let found = [placement.use.isSharedBeyond(device) ? SHARED : generation];
  for (const group of [groups.processGroup, groups.replicateGroup]) {
    if (group === undefined || group.worldSize === 1) {
      continue;
    }
    const own = new Uint8Array(Float64Array.of(found.includes(SHARED) ? SHARED : found[0]!).buffer);
    const all = new Uint8Array(own.byteLength * group.worldSize);
    await group.allGather(own, all, { dtype: 'u8', tag: 'stores', identity });
    found = [...found, ...new Float64Array(all.buffer)];
  }
  if (found.includes(SHARED)) {
    throw new FsdpConfigError(
      `fsdp: expected one store a rank, got one that several ranks have (offloadConfig of rank ${groups.processGroup.rank} or of another). Each rank opens its own, in a directory of its own.`,
    );
  }
  if (new Set(found).size > 1) {
    throw new FsdpConfigError(
      `fsdp: expected all ranks' stores in one generation, got ${found.slice(1).join(', ')} by rank. Some were killed before they could commit: start from a checkpoint.`,
    );
  }
}
