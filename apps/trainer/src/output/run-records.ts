// A run as plain records, in the order in which things happened. Steps are the lines of
// metrics.jsonl, and the others those of events.jsonl; the page draws both, live or from a file.

import type {
  ClassesTold,
  ComputeTold,
  MembersTold,
  RankEndKind,
  RankReady,
  RankStatus,
  RunStart,
  SaveGone,
  SaveWritten,
  StepMetrics,
  StepResources,
} from '../rank/events.js';

/** What the lines of older runs lack. */
type Added = 'tokens' | 'epoch';

/** A line of metrics.jsonl. */
export interface StepLine
  extends Omit<StepMetrics, 'loss' | Added>,
    Partial<Pick<StepMetrics, Added>>,
    Partial<StepResources> {
  /** Null where no target counts, because JSON has no NaN. */
  readonly loss: number | null;
  /** The time when the step had ended, in ms since the Unix epoch. */
  readonly atMs: number;
}

/** How a run ended. */
export type RunEndKind = 'done' | 'failed' | 'stopped';

/** A line of events.jsonl. `atMs` is in ms since the Unix epoch. */
export type EventRecord =
  /** A command begins the run, or goes on with it. */
  | {
      readonly type: 'run';
      readonly title: string;
      readonly steps: number;
      readonly ranks: number;
      readonly atMs: number;
    }
  /** What the steps of the command begin with. */
  | ({ readonly type: 'start'; readonly atMs: number } & RunStart)
  /** What the command prints before the first step, as names and values. */
  | { readonly type: 'header'; readonly rows: readonly (readonly [string, string])[] }
  | ({ readonly type: 'ready' } & Omit<
      RankReady,
      'processBytes' | 'params' | 'data' | 'valid' | 'head'
    >)
  | ({ readonly type: 'rank'; readonly atMs: number } & RankStatus)
  | {
      readonly type: 'sample';
      readonly step: number;
      readonly prompt: string;
      readonly text: string;
    }
  /** The work of a token, and the most that all devices together were measured at. */
  | ({ readonly type: 'compute' } & ComputeTold)
  | ({ readonly type: 'classes'; readonly step: number } & ClassesTold)
  | ({ readonly type: 'save'; readonly atMs: number } & SaveWritten)
  /** A save has made room for newer ones, or was set aside as one that is not good. */
  | ({ readonly type: 'saveGone'; readonly atMs: number } & SaveGone)
  /** The ranks of an elastic job have changed, and it goes on. */
  | ({ readonly type: 'members'; readonly atMs: number } & MembersTold)
  | { readonly type: 'warning'; readonly text: string }
  | {
      readonly type: 'rankEnd';
      readonly rank: number;
      readonly end: RankEndKind;
      readonly reason?: string | undefined;
      readonly atMs: number;
    }
  | {
      readonly type: 'runEnd';
      readonly end: RunEndKind;
      readonly reason?: string | undefined;
      readonly atMs: number;
      /** The path of the page that the run has left; absent without --out. */
      readonly report?: string | undefined;
    };

export type RunRecord = ({ readonly type: 'step' } & StepLine) | EventRecord;
