// What the command and its rank processes tell each other over the IPC channel. Ranks leave when
// the channel breaks, so it is also how they notice that the command is gone.

import type { RankEvent } from '../rank/events.js';
import type { PreparedRun } from '../run-config.js';

/** A rank's place in a job over WebSockets. */
export interface RankPlace {
  readonly rank: number;
  readonly worldSize: number;
  readonly host: string;
  /** Where rank 0 listens for the others. */
  readonly port: number;
  /** Made anew for each job; never on a command line, where other users could read it. */
  readonly secret: string;
}

/** How a rank is asked to end. */
export interface RankSignals {
  /** Ends it early, by an error or not. */
  readonly signal: AbortSignal;
  /** Ends it after the step that is on its way, with a save. */
  readonly wrapUp: AbortSignal;
}

export type ToRank =
  | { readonly type: 'start'; readonly config: PreparedRun; readonly place: RankPlace }
  /** End after the step that is on its way, with a save. */
  | { readonly type: 'wrap-up' }
  /** Leave at once, cleanly. */
  | { readonly type: 'stop' };

export type FromRank =
  | { readonly type: 'event'; readonly event: RankEvent }
  | { readonly type: 'done' }
  | { readonly type: 'failed'; readonly failure: RankFailure };

/** An error on its way to the command. */
export interface RankFailure {
  readonly message: string;
  readonly isUsage: boolean;
  /** The rank suffered from another's end: some other failure is the cause. */
  readonly isPeerLost: boolean;
}
