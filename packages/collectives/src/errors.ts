// Typed errors of collectives and of a start. `code` is stable and is what callers
// branch on; the README has the tables. Ranks in messages are world ranks: `rank 3/8 allGather #41:
// peer 2 lost (...)`.

import { CodedError } from '@shardweave/dtypes/messages';
import { type Failure, lostOf, type PeerCall } from './failure.js';

/**
 * The `code` of a CollectiveError; each belongs to one class. MISMATCH: CollectiveMismatchError.
 * PEER_LOST: PeerLostError. RELAY_LOST: RelayLostError. TIMEOUT: CollectiveTimeoutError. ABORTED:
 * CollectiveAbortedError. EPOCH: EpochOverError. CLOSED: GroupClosedError. USAGE:
 * CollectiveUsageError. JOIN: JoinError.
 */
export type CollectiveErrorCode =
  | 'MISMATCH'
  | 'PEER_LOST'
  | 'RELAY_LOST'
  | 'TIMEOUT'
  | 'ABORTED'
  | 'EPOCH'
  | 'CLOSED'
  | 'USAGE'
  | 'JOIN';

/** Stands for the rank of a process that speaks to a coordinator, where nobody has a rank. */
export const NO_RANK = 0xffffffff;

/** The place where an error was thrown. */
export interface ErrorPlace {
  /** NO_RANK where there is none; the message then begins with the call. */
  readonly rank: number;
  readonly worldSize: number;
  /** The call and, where it says so, what it is for: `allGather #41 of 'saveCheckpoint()'`. */
  readonly call: string;
}

/** Base of all errors that the calls of a group throw or reject with on purpose. */
export abstract class CollectiveError extends CodedError {
  abstract override readonly code: CollectiveErrorCode;
  /** The world rank that rejects, and the call that it rejects. */
  readonly rank: number;
  readonly call: string;
  /** The world rank at which the failure began. */
  readonly originRank: number;
  /** The world ranks that are dead or cut off, as far as this rank knows; often none. */
  readonly lost: readonly number[];

  constructor(
    place: ErrorPlace,
    originRank: number,
    message: string,
    lost: readonly number[] = [],
  ) {
    const who = place.rank === NO_RANK ? '' : `rank ${place.rank}/${place.worldSize} `;
    super(`${who}${place.call}: ${message}`);
    this.lost = lost;
    this.rank = place.rank;
    this.call = place.call;
    this.originRank = originRank;
  }
}

/** Ranks called different operations, dtypes or sizes as the same call of a group. */
export class CollectiveMismatchError extends CollectiveError {
  readonly code = 'MISMATCH';
  /** What each rank called, as far as that was known within a moment. */
  readonly calls: readonly PeerCall[];

  constructor(place: ErrorPlace, originRank: number, calls: readonly PeerCall[]) {
    const listed = calls.map(({ rank, call }) => `rank ${rank} called ${call}`).join(', ');
    super(place, originRank, `ranks disagree: ${listed}. All ranks must call the same in order.`);
    this.calls = calls;
  }
}

/** A rank died, fell silent, or left while it was needed. */
export class PeerLostError extends CollectiveError {
  readonly code = 'PEER_LOST';

  constructor(
    place: ErrorPlace,
    originRank: number,
    reason: string,
    lost: readonly number[] = [originRank],
  ) {
    super(place, originRank, `peer ${originRank} lost (${reason})`, lost);
  }
}

/**
 * A process that links this rank to others without being a rank itself died or fell silent; the
 * ranks behind it may be well. `originRank` is the rank that noticed.
 */
export class RelayLostError extends CollectiveError {
  readonly code = 'RELAY_LOST';

  constructor(place: ErrorPlace, originRank: number, reason: string) {
    const whose = originRank === place.rank ? 'the relay' : `rank ${originRank}: the relay`;
    super(place, originRank, `${whose} is lost (${reason})`);
  }
}

/** A call took longer than its limit. */
export class CollectiveTimeoutError extends CollectiveError {
  readonly code = 'TIMEOUT';
  /** The world ranks that have not made the call; where all have, those that have not sent. */
  readonly waitingFor: readonly number[];

  constructor(
    place: ErrorPlace,
    originRank: number,
    reason: string,
    waitingFor: readonly number[],
  ) {
    super(place, originRank, originRank === place.rank ? reason : `rank ${originRank}: ${reason}`);
    this.waitingFor = waitingFor;
  }
}

/** A rank called `abort`. */
export class CollectiveAbortedError extends CollectiveError {
  readonly code = 'ABORTED';
  readonly reason: string;

  constructor(place: ErrorPlace, originRank: number, reason: string) {
    super(place, originRank, `aborted by rank ${originRank}: ${reason}`);
    this.reason = reason;
  }
}

/**
 * The members of an elastic job change. The group of this epoch has ended, and the job goes on in
 * another one: `reform` of the member leads there.
 */
export class EpochOverError extends CollectiveError {
  readonly code = 'EPOCH';

  constructor(place: ErrorPlace, originRank: number, reason: string, lost: readonly number[]) {
    super(
      place,
      originRank,
      `this epoch is over (${reason}); reform() leads to the next one`,
      lost,
    );
  }
}

/** The group was closed on this rank. */
export class GroupClosedError extends CollectiveError {
  readonly code = 'CLOSED';

  constructor(place: ErrorPlace) {
    super(place, place.rank, 'the group is closed');
  }
}

/** Arguments that are wrong whatever the other ranks call; nothing was sent. */
export class CollectiveUsageError extends CollectiveError {
  readonly code = 'USAGE';

  constructor(place: ErrorPlace, message: string) {
    super(place, place.rank, message);
  }
}

/** The group could not be formed: nobody listens, a rank is late, or a secret is wrong. */
export class JoinError extends CollectiveError {
  readonly code = 'JOIN';

  constructor(place: Omit<ErrorPlace, 'call'>, message: string) {
    super({ ...place, call: 'join' }, place.rank, message);
  }
}

/**
 * Another rank failed in its part of a call, so this one cannot finish its own. After a step the
 * process groups have ended; after a save, load or state dict they go on working.
 */
export class PeerFailedError extends CodedError {
  readonly code = 'PEER_FAILED';
  /** The rank that failed. */
  readonly rank: number;
  readonly operation: string;
  readonly reason: string;

  constructor(
    message: string,
    failure: { readonly rank: number; readonly operation: string; readonly reason: string },
    options?: ErrorOptions,
  ) {
    super(message, options);
    this.rank = failure.rank;
    this.operation = failure.operation;
    this.reason = failure.reason;
  }
}

/**
 * A start that can't work, because something in the environment or the options is missing, wrong or
 * contradictory. Nothing has been sent when it is thrown.
 */
export class LaunchError extends CodedError {
  readonly code = 'LAUNCH';
  /** The environment variable or option that is at fault. */
  readonly variable: string;
  /** The value that it had; undefined where it was not set. */
  readonly value: string | undefined;

  /**
   * @param text `problem` has no full stop at its end; `remedy` is a sentence that tells what to
   * set
   */
  constructor(
    variable: string,
    value: string | undefined,
    text: { readonly problem: string; readonly remedy: string },
  ) {
    const had = value === undefined ? 'it is not set' : `got "${value}"`;
    super(`${variable}: ${text.problem}, ${had}. ${text.remedy}`);
    this.variable = variable;
    this.value = value;
  }
}

/** The error that a call at `place` rejects with after `failure`. */
export function errorOfFailure(failure: Failure, place: ErrorPlace): CollectiveError {
  switch (failure.kind) {
    case 'peer-lost':
      return new PeerLostError(place, failure.origin, failure.reason, lostOf(failure));
    case 'relay-lost':
      return new RelayLostError(place, failure.origin, failure.reason);
    case 'epoch-over':
      return new EpochOverError(place, failure.origin, failure.reason, lostOf(failure));
    case 'aborted':
      return new CollectiveAbortedError(place, failure.origin, failure.reason);
    case 'timeout':
      return new CollectiveTimeoutError(place, failure.origin, failure.reason, failure.waitingFor);
    case 'mismatch':
      return new CollectiveMismatchError(place, failure.origin, failure.calls);
    case 'closed':
      return new GroupClosedError(place);
  }
}
