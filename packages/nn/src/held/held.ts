// What a wrapper says of the parameters below it, so that the verbs of a model's state (stateDict,
// saveCheckpoint and their like) are the same functions whatever wraps the model. nn knows neither
// ranks nor stores: what they do comes through this hook.
//
// Note [who answers]
// The first wrapper on the way down from the model answers for everything below it, as the root of
// a tree of wrappers does. Parameters above all wrappers are plain. A plain module is so the union
// of what it has below it, in the order of its parameters, and a list of modules is one as well.

import type { Tensor } from '@shardweave/tensor-core';
import type { ElementRange } from '../host-tensor.js';
import type { Module } from '../module.js';
import type { FlatProgress } from './held-flats.js';
import type { GivenEntry, PartRoom, StateDictPlaces } from './state-entry.js';

/** The key under which a wrapper says what it holds; another copy of the package finds it, too. */
export const HELD: unique symbol = Symbol.for('@shardweave/nn/held');

/** A wrapper that answers for the parameters and buffers below it. */
export interface Holder {
  readonly [HELD]: HeldBy;
}

/** Who a wrapper is, and how wrappers like it are asked. */
export interface HeldBy {
  /** The wrapper in errors. */
  readonly name: string;
  /** The ranks that hold parts or replicas of it; undefined where this process has all alone. */
  readonly group: object | undefined;
  /**
   * Answers for several wrappers over one group at once, which make their calls as one. All
   * wrappers of a package have the same function.
   */
  readonly together: (wrappers: readonly Module[]) => Held;
}

/** A call to the parameters of a model. */
export interface HeldCall {
  /** Its name in errors, and for ranks to compare. */
  readonly operation: string;
  /**
   * Whether it handles whole tensors, the pieces that this process has, as saves do, or gradients.
   * What it allows meanwhile is the wrapper's to say.
   */
  readonly by: 'tensors' | 'pieces' | 'gradients';
  /** Whether it sets values. */
  readonly isLoad: boolean;
}

/** What wrappers of one kind hold. */
export interface Held {
  /**
   * Runs `body` while everything rests and no other call changes it. Throws where something that
   * has begun has not ended.
   */
  whileAtRest<T>(call: HeldCall, body: (held: AtRest) => Promise<T>): Promise<T>;
  /** Where a state dict goes if the call does not say. Default: to the host of every rank. */
  readonly places?: Required<StateDictPlaces>;
  /**
   * Whether float buffers have another dtype while they are computed with, and f32 in a state dict.
   * Default false.
   */
  readonly castsBuffers?: boolean;
}

/** What is held during one call. */
export interface AtRest {
  readonly parts: readonly HeldPart[];
  readonly ranks: HeldRanks;
  /** Throws where a step or a load has changed something since the call began. */
  requireUnchanged(): void;
}

/** Parameters that are read and written together: a flat parameter, or all plain ones. */
export interface HeldPart {
  /** Some of them may belong to no module that the call is about. */
  readonly parameters: readonly Tensor[];
  /** What follows their names in saves: nothing, or `@1` where ranks have different ones. */
  readonly suffix: string;
  /** Whether all ranks have the same parameters here, whose values they compare in a load. */
  readonly isShared: boolean;
  /** Whether this process writes what it has into a save; false where another one has it, too. */
  readonly isWriting: boolean;
  /**
   * Reads a parameter without other ranks, also when the call is over: it waits for its own turn.
   * Undefined where other ranks have parts of it.
   */
  readonly readLater: ReadParameter | undefined;
  /**
   * Reads all parameters, with other ranks where they have parts. The result is undefined on ranks
   * that only take part, which with `toFirst` may be all but the first.
   */
  readWhole(options: { readonly toFirst: boolean }): Promise<ReadParameter | undefined>;
  /** Sets parameters, of whose entries it may read no more than this process keeps. */
  write(given: GivenParameters, room: PartRoom): Promise<void>;
  /** Frees copies of values that a load by pieces has replaced. */
  dropCopies(): void;
  /**
   * The elements that each rank has of the parameter at `index`. Absent where every rank has all of
   * them.
   */
  readonly elementsOf?: ((index: number) => readonly ElementsOfRank[]) | undefined;
  /** What all ranks with elements of these parameters tell of an optimizer's progress. */
  agreeOnProgress(own: FlatProgress): Promise<FlatProgress>;
}

/** Elements [first, first + length) of a parameter, on one rank. */
export interface ElementsOfRank {
  readonly rank: number;
  readonly first: number;
  readonly length: number;
}

/** The bytes of a parameter at rest, or of some of its elements. */
export type ReadParameter = (parameter: Tensor, part?: ElementRange) => Promise<Uint8Array>;

/** The entries of some parameters with their names. */
export type GivenParameters = ReadonlyMap<Tensor, readonly [name: string, entry: GivenEntry]>;

/** The processes that hold a model. Each makes the same calls in the same order. */
export interface HeldRanks {
  /** Whether there are no others, so that nothing needs to be compared. */
  readonly isAlone: boolean;
  readonly rank: number;
  readonly worldSize: number;
  /** Whether this one begins and publishes saves, and has what the first rank alone gets. */
  readonly isFirst: boolean;
  /** Whether this one writes into saves; false where another process has all that it has. */
  readonly isWriting: boolean;
  /** Runs `own` on every rank. Where it throws on one, all of them throw. */
  agree<T>(operation: string, own: () => Promise<T>): Promise<T>;
  /** Makes a text on every rank, and throws on all where it throws on one, or texts differ. */
  agreeOnText(operation: string, make: () => string | Promise<string>): Promise<void>;
  /** Runs `own`, which makes this rank's part of the next exchange: others hear where it throws. */
  attempt<T>(operation: string, own: () => Promise<T>): Promise<T>;
  /**
   * Adds up numbers of all ranks in place. Each is that of one rank and zeros of the others, so the
   * sum is exact; where replicas may differ it is that of the first.
   */
  sum(operation: string, values: Float32Array): Promise<void>;
  /** The first rank's norm. Absent where all ranks that compute it get the same bits. */
  firstNorm?: ((operation: string, norm: number) => Promise<number>) | undefined;
  /** The texts of all ranks. */
  exchange(operation: string, text: string): Promise<readonly string[]>;
  /** Whether `agree` has thrown this because `own` threw on another rank. */
  isOfAnother(error: unknown): boolean;
}

/** A process that has a model alone. */
export const ALONE: HeldRanks = {
  isAlone: true,
  rank: 0,
  worldSize: 1,
  isFirst: true,
  isWriting: true,
  agree: (_, own) => own(),
  agreeOnText: async (_, make) => {
    await make();
  },
  attempt: (_, own) => own(),
  sum: async () => {},
  exchange: async (_, text) => [text],
  isOfAnother: () => false,
};
