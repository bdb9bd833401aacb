// What the tree, its units and collective calls need of a wrapper. They import only this interface,
// so the wrapper can import them without a circle.

import type { ProcessGroup } from '@shardweave/collectives';
import { isModule, type Module } from '@shardweave/nn';
import type { ResolvedFsdpOptions } from '../resolve-options.js';
import type { ShardedUnit } from '../unit/sharded-unit.js';
import type { StateMachine } from './training-state.js';

/**
 * The key under which a wrapper keeps its TreeInstance; another copy of the package finds it too.
 */
export const INSTANCE: unique symbol = Symbol.for('@shardweave/fsdp/instance');

/**
 * A wrapper with its state as an opaque object, so that the package's declarations show none of it.
 */
export interface IsInstance {
  readonly [INSTANCE]: object;
}

export interface TreeInstance {
  /** The module that a program calls. */
  readonly wrapper: Module;
  /** The module that it wraps. */
  readonly module: Module;
  /** The name in errors and traces. */
  readonly name: string;
  readonly options: ResolvedFsdpOptions;
  readonly processGroup: ProcessGroup;
  /** The ranks that hold a replica of this rank's shard; undefined without hybrid sharding. */
  readonly replicateGroup: ProcessGroup | undefined;
  /**
   * The flat parameters of this instance itself; empty where inner instances hold all parameters.
   */
  readonly units: readonly ShardedUnit[];
  /** What it is doing, and whether a call may begin. */
  readonly activity: StateMachine;
  readonly isRoot: boolean;
  /** Whether its full parameters are freed after forward. */
  readonly isResharding: boolean;
  /**
   * The tree that it belongs to, once a forward or another collective call has elected the root.
   */
  readonly tree:
    | { readonly instances: readonly TreeInstance[]; readonly numericClasses: readonly string[] }
    | undefined;
  /** This instance and those nested below it, outer first. */
  instances(): TreeInstance[];
  /** Elects the root and opens its tree; the caller holds the turn. */
  elect(): Promise<unknown>;
  /** Frees the full parameters, after what the program wrote into them is kept. */
  drop(): void;
  /** Frees them as drop does, unless the instance keeps them after forward or others use them. */
  reshard(): void;
  /** Copies what the program has written into gathered parameters into the shards. */
  keepWrites(): void;
}

/** Whether a value is a wrapper, made by this copy of the package or by another. */
export function isInstance(value: unknown): value is Module & IsInstance {
  return isModule(value) && INSTANCE in value;
}

/** The state that a wrapper has for the tree; undefined for any other value. */
export function treeInstanceOf(value: unknown): TreeInstance | undefined {
  return isInstance(value) ? (value[INSTANCE] as TreeInstance) : undefined;
}
