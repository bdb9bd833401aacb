// What a rank tells the command while it works: plain data, so that it can cross processes.

import type { BackendInfo, MemoryBytes, TraceEvent } from '@shardweave/tensor-core';
import type { DataSize } from '../data/dataset.js';
import type { CommCounts } from './comm-counter.js';
import type { CommTimes } from './comm-watch.js';
import type { PhaseBytes } from './phase-memory.js';

/** Everything is set up and the first step can start. */
export interface RankReady {
  readonly rank: number;
  readonly device: BackendInfo['kind'];
  /** For people: the adapter's name, or the cpu device's threads. */
  readonly description: string;
  /** Ranks of one class give equal bits for equal inputs. */
  readonly numericClass: string;
  /**
   * By class of products the tile that makes them, where a GPU was measured; undefined on the cpu.
   */
  readonly tiles?: Readonly<Record<string, string>> | undefined;
  /** Trainable numbers of the whole model, tied weights once, no padding. */
  readonly params: number;
  /** This rank's f32 parameters take so many bytes, padding included. */
  readonly shardBytes: number;
  readonly data: DataSize;
  /** The size of what is evaluated. */
  readonly valid: DataSize | undefined;
}

/** A line of metrics.jsonl. */
export interface StepMetrics {
  /** From 1. */
  readonly step: number;
  /**
   * Weighted sum over the targets that count, divided by their number; before the update. Not a
   * number where none counts.
   */
  readonly loss: number;
  /** Those that count, of all ranks and micro-steps. */
  readonly targets: number;
  /** Unscaled, before clipping; null where not finite. */
  readonly gradNorm: number | null;
  readonly lr: number;
  /** 1 where nothing is scaled. */
  readonly lossScale: number;
  /** An overflow, or no target: the parameters stayed as they were. */
  readonly skipped: boolean;
  readonly stepMs: number;
  readonly tokensPerSecond: number;
  /**
   * Mean loss on what is evaluated, after the update; undefined in a step without an evaluation.
   */
  readonly validLoss?: number | undefined;
}

/** What rank 0 knows besides. The times are there where somebody looks: see isWatched. */
export interface StepResources extends Partial<CommTimes> {
  /** Most bytes this rank's device has held so far. */
  readonly peakBytes: number;
  /** Payload this rank sent in this step. */
  readonly wireBytes: number;
}

/** The most that values at rest off the device take. */
export interface StoreBytes {
  /** In host memory. */
  readonly hostBytes: number;
  /** In files: a value that steps change has one of the last generation and one since. */
  readonly diskBytes: number;
}

/** An entry of summary.json's `ranks`. */
export interface RankReport extends StoreBytes {
  readonly rank: number;
  readonly device: BackendInfo['kind'];
  readonly peakBytes: MemoryBytes;
  /** Payload of the training steps alone. */
  readonly bytesSent: number;
  readonly bytesReceived: number;
  readonly allGathers: number;
  readonly reduceScatters: number;
  readonly allReduces: number;
}

/** What a rank took, or was to take, in the steps of one command. */
export interface RankTaken extends CommCounts, StoreBytes {
  /** At most in steps behind the first; empty where there is none. */
  readonly phases: readonly PhaseBytes[];
}

/** An entry of summary.json's `check`. */
export interface RankCheck {
  readonly rank: number;
  readonly steps: number;
  readonly planned: RankTaken;
  readonly measured: RankTaken;
  /** What a step was to take; from rank 0 alone. */
  readonly stepMs?: number | undefined;
}

/** What a rank has come to at the end of a step. */
export interface RankStatus extends CommTimes {
  readonly rank: number;
  /** From 1. */
  readonly step: number;
  /** What its device held, by phase. */
  readonly phases: readonly PhaseBytes[];
  /** Payload of this step. */
  readonly bytesSent: number;
  readonly bytesReceived: number;
}

/** A save that is whole and on the disk. */
export interface SaveWritten {
  readonly step: number;
  readonly directory: string;
  /** What all ranks have written. */
  readonly bytes: number;
  /** From its start to its end, most of which the next steps ran beside. */
  readonly ms: number;
  /** How long of that the next step waited. */
  readonly waitMs: number;
}

/** What the run goes on from. */
export interface ResumedFrom {
  /** Steps that are done. */
  readonly step: number;
  /** undefined: there is no save, and the run starts anew. */
  readonly path: string | undefined;
  /** Sentences: saves that can't be used, and what is other than it was. */
  readonly notes: readonly string[];
}

/**
 * How a rank left: its work done, by an error of its own, by a signal, or because the job ended.
 */
export type RankEndKind = 'done' | 'failed' | 'killed' | 'stopped';

export type RankEvent =
  | { readonly type: 'ready'; readonly ready: RankReady }
  /** From rank 0 alone. */
  | { readonly type: 'step'; readonly metrics: StepMetrics; readonly resources: StepResources }
  /** From rank 0 alone: what takes a while behind the last step. */
  | { readonly type: 'doing'; readonly what: string }
  /** From rank 0 alone: text the trained model made, after its prompt. */
  | { readonly type: 'sample'; readonly prompt: string; readonly text: string }
  /** From rank 0 alone, before its first step; with --resume. */
  | { readonly type: 'resumed'; readonly from: ResumedFrom }
  /** From rank 0 alone: the run ends early, as it was asked to, with this save. */
  | { readonly type: 'stopped'; readonly step: number; readonly path: string }
  | { readonly type: 'early'; readonly step: number; readonly why: 'patience' | 'time' }
  | { readonly type: 'report'; readonly report: RankReport }
  /** With --check, behind the report. */
  | { readonly type: 'check'; readonly check: RankCheck }
  /** From each rank where somebody looks. */
  | { readonly type: 'rank'; readonly status: RankStatus }
  /** From rank 0 alone. */
  | { readonly type: 'save'; readonly save: SaveWritten }
  /** Something that a person should know and that ends nothing; each text is shown once. */
  | { readonly type: 'warning'; readonly text: string }
  /** From whoever started the rank. */
  | {
      readonly type: 'end';
      readonly rank: number;
      readonly end: RankEndKind;
      /** A message, or the signal's name. */
      readonly reason?: string | undefined;
    }
  /** With --trace; times in ms since the Unix epoch, which ranks of one machine share. */
  | { readonly type: 'trace'; readonly rank: number; readonly events: readonly TraceEvent[] };

export type EmitRankEvent = (event: RankEvent) => void;
