// The messages between the command and its rank processes, over the IPC channel. Ranks leave when
// the channel breaks, which is how they notice that the command is gone.

import type { ShmMemberHandle } from '@shardweave/collectives/elastic';
import type { EmitRankEvent, RankEvent } from '../rank/events.js';
import type { PreparedRun } from '../run-config.js';

/** A rank's place in a job over WebSockets. */
export interface RankPlace {
  readonly rank: number;
  readonly worldSize: number;
  readonly host: string;
  /** The port on which rank 0 listens for the others. */
  readonly port: number;
  /**
   * The job's secret, made anew for each job. It is never on a command line, where other users
   * could read it.
   */
  readonly secret: string;
}

/** A rank's place in a job whose ranks change. */
export interface ElasticPlace extends Pick<RankPlace, 'host' | 'port' | 'secret'> {
  /** Its number among the ranks that the command has started. */
  readonly localRank: number;
  /** The most ranks of the job. */
  readonly max: number;
  /** Whether it begins with the job, and not in place of a rank that was lost. */
  readonly isFirst: boolean;
}

/** The place of a thread in a job whose ranks change. */
export interface ElasticThreadPlace extends Pick<ElasticPlace, 'localRank' | 'isFirst'> {
  readonly member: ShmMemberHandle;
}

/** What a rank apart from the command is to do, and how it is asked to end. */
export interface RankCall {
  readonly config: PreparedRun;
  readonly emit: EmitRankEvent;
  /** Ends it early, with an error or without. */
  readonly signal: AbortSignal;
  /** Ends it after the present step, with a save. */
  readonly wrapUp: AbortSignal;
  /** Aborted where it saves if its job ends because too few ranks are left. */
  readonly keeping?: AbortSignal | undefined;
}

/** The work of one rank, which `Link` links to the others. */
export type RankWork<Link> = (link: Link, call: RankCall) => Promise<void>;

export type ToRank =
  | {
      readonly type: 'start';
      readonly config: PreparedRun;
      readonly place: RankPlace | ElasticPlace;
    }
  /** The rank ends after the present step, with a save. */
  | { readonly type: 'wrap-up' }
  /** The rank is the one that saves if the job ends because too few are left. */
  | { readonly type: 'keep' }
  /** The rank leaves at once, cleanly. */
  | { readonly type: 'stop' };

export type FromRank =
  | { readonly type: 'event'; readonly event: RankEvent }
  | { readonly type: 'done' }
  | { readonly type: 'failed'; readonly failure: RankFailure };

/** An error on its way to the command. */
export interface RankFailure {
  readonly message: string;
  /**
   * What the command makes of it. `peer-lost`: the rank only suffered from another's end, so that
   * some other failure is the cause.
   */
  readonly kind: 'failed' | 'usage' | 'diverged' | 'peer-lost';
}
