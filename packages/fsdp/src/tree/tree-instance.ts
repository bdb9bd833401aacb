// What the tree, its units and collective calls need of a wrapper. They know this alone, so that
// the wrapper knows them and none of them knows the wrapper.

import type { ProcessGroup } from '@shardweave/collectives';
import { isModule, type Module } from '@shardweave/nn';
import type { ShardedUnit } from '../unit/sharded-unit.js';

/** What an instance is doing. Public calls other than forward and backward need 'idle'. */
export type TrainingState =
  | 'idle'
  | 'forward'
  | 'backwardPre' // its full parameters are back, gradients not yet all in
  | 'backwardPost' // a gradient of its own has come
  | 'summonFullParams';

/** Where a wrapper keeps its TreeInstance; another copy of the package finds it, too. */
export const INSTANCE: unique symbol = Symbol.for('@shardweave/fsdp/instance');

/** A wrapper; opaque, so that the package's declarations show users none of it. */
export interface IsInstance {
  readonly [INSTANCE]: object;
}

export interface TreeInstance {
  /** The module that a program calls. */
  readonly wrapper: Module;
  /** What it wraps. */
  readonly module: Module;
  /** For errors and traces. */
  readonly name: string;
  readonly processGroup: ProcessGroup;
  /** Over which shards are replicated; undefined without hybrid sharding. */
  readonly replicateGroup: ProcessGroup | undefined;
  /** Its own flat parameters; none where inner instances hold all parameters. */
  readonly units: readonly ShardedUnit[];
  readonly trainingState: TrainingState;
  readonly isRoot: boolean;
  /** Whether its full parameters are freed after forward. */
  readonly isResharding: boolean;
  /** The tree it belongs to, once a forward or another collective call has elected the root. */
  readonly tree:
    | { readonly instances: readonly TreeInstance[]; readonly numericClasses: readonly string[] }
    | undefined;
  /** This instance and those nested below it, outer first. */
  instances(): TreeInstance[];
  /** Opens its tree, in a turn that its caller has. */
  elect(): Promise<unknown>;
  /** Frees its full parameters, and keeps what was written into them. */
  drop(): void;
  /** As drop, where it reshards and nobody else uses them now. */
  reshard(): void;
  /** Takes what the program has written into gathered parameters over into the shards. */
  keepWrites(): void;
  /** Enters or leaves summonFullParams. */
  setSummoning(isSummoning: boolean): void;
  /** Back to rest, at the end of a backward or after a failure. */
  becomeIdle(): void;
  /** @throws {FsdpStateError} in the name of a call, unless it is in one of the states */
  expectState(operation: string, states: readonly TrainingState[]): void;
}

/** Whether a module is a wrapper, of this copy of the package or of another. */
export function isInstance(value: unknown): value is Module & IsInstance {
  return isModule(value) && INSTANCE in value;
}

/** What a wrapper is to the tree; undefined for any other module. */
export function treeInstanceOf(value: unknown): TreeInstance | undefined {
  return isInstance(value) ? (value[INSTANCE] as TreeInstance) : undefined;
}
