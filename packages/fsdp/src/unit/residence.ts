// Where shards rest between their uses: on the device, or in a store on the host or on a disk.

import { type FlatHome, type HomeSteps, type StoreUse, storeUseOf } from '@shardweave/nn/flat';
import { createHostStore, type ShardStore } from '@shardweave/shard-store';
import { FsdpConfigError } from '../errors.js';
import { callIdentity } from '../tree/call-identity.js';
import type { LinkGroups } from './unit-links.js';

/** Where shards, gradients and optimizer state rest between uses. */
export interface ResidenceOptions {
  /**
   * The shards and their optimizer state rest in host memory and come to the device for use:
   * gathers start from host bytes, a step brings one flat parameter at a time. Default false.
   */
  readonly moveParamsToCpu?: boolean;
  /**
   * The reduced gradients rest in host memory, and add up there. Default moveParamsToCpu; must not
   * be false with it.
   */
  readonly moveGradsToCpu?: boolean;
  /** Shards, gradients and optimizer state rest in a store: a disk's, or one of your own. */
  readonly offloadConfig?: OffloadConfig;
}

/** The store that shards rest in, and whether training goes on from what it has. */
export interface OffloadConfig {
  /** One a rank. Stays the caller's: close it after the module is disposed. */
  readonly store: ShardStore;
  /**
   * Go on from what the store's last generation has in place of initial values, buffers, optimizer
   * state and the device's random state too. The same modules, in the same order, on the same
   * ranks. False: begin anew, whatever is there. Default: begin anew, unless a model is there that
   * has been trained, which is an error.
   */
  readonly resume?: boolean;
}

export interface Residence {
  readonly use: StoreUse;
  readonly store: ShardStore;
  readonly rests: 'gradient' | 'all';
  readonly resume: boolean;
  /** As it was asked for; see OffloadConfig. */
  readonly asked: boolean | undefined;
  /** Whether the store is the caller's, who may give it to a later process. */
  readonly isGiven: boolean;
}

/** @throws {FsdpConfigError} for options that contradict each other */
export function resolveResidence(options: ResidenceOptions): Residence | undefined {
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

/** The stores that instances have, each once. */
export function homeStepsOf(
  instances: readonly { readonly units: readonly { readonly home: FlatHome | undefined }[] }[],
): Set<HomeSteps> {
  const units = instances.flatMap((instance) => instance.units);
  return new Set(units.flatMap(({ home }) => home?.steps ?? []));
}

/** Keeps steps and norms off what rests in stores, until the returned function is called. */
export function occupyUnits(
  instances: readonly { readonly units: readonly { readonly home: FlatHome | undefined }[] }[],
  by: string,
): () => void {
  const units = instances.flatMap((instance) => instance.units);
  const ends = units.flatMap(({ home }) => home?.occupy(by) ?? []);
  return () => {
    for (const end of ends) {
      end();
    }
  };
}

/** This rank's part of the names in a store, which ranks of one process may share. */
export function rankPrefix({ processGroup, replicateGroup }: LinkGroups): string {
  const replica = replicateGroup === undefined ? '' : `replica${replicateGroup.rank}.`;
  return `${replica}rank${processGroup.rank}/`;
}

/**
 * Checks that every rank goes on from the same step. Collective.
 * @throws {FsdpConfigError} naming the generations
 */
export async function agreeOnGeneration(residence: Residence, groups: LinkGroups): Promise<void> {
  const identity = callIdentity('initialize', 'stores');
  const generations = [residence.store.generation];
  for (const group of [groups.processGroup, groups.replicateGroup]) {
    if (group === undefined || group.worldSize === 1) {
      continue;
    }
    const own = new Uint8Array(Float64Array.of(generations[0]!).buffer);
    const all = new Uint8Array(own.byteLength * group.worldSize);
    await group.allGather(own, all, { dtype: 'u8', tag: 'generation', identity });
    generations.push(...new Float64Array(all.buffer));
  }
  if (new Set(generations).size === 1) {
    return;
  }
  throw new FsdpConfigError(
    `fsdp: expected all ranks' stores in one generation, got ${generations.slice(1).join(', ')} by rank. Some were killed before they could commit: start from a checkpoint.`,
  );
}
