// What a rank tells the command while it works, as plain data that can cross processes.

import type { BackendInfo, MemoryBytes, TraceEvent } from '@shardweave/tensor-core';
import type { DataSize } from '../data/dataset.js';
import type { RowOrigin } from '../data/rows.js';
import type { Figures } from '../figures/figures.js';
import type { TaskHead } from '../task/task-head.js';
import type { CommTimes } from './comm-watch.js';
import type { CommCounts } from './step/comm-counter.js';
import type { PhaseBytes } from './step/phase-memory.js';

/** The report that everything is set up and the first step can start. */
export interface RankReady {
  readonly rank: number;
  readonly device: BackendInfo['kind'];
  /** A description for people: the adapter's name, or the cpu device's threads. */
  readonly description: string;
  /** Whether it computes on the CPU: a cpu device, or the driver of a GPU that is none. */
  readonly isSoftware: boolean;
  /** The name of the machine that the rank is on. */
  readonly host: string;
  /**
   * What the environment of its process says of the cards that its driver shows, such as
   * `DRI_PRIME=pci-0000_01_00_0!`; undefined where it says nothing.
   */
  readonly shown?: string | undefined;
  /** The numeric class; ranks of one class give equal bits for equal inputs. */
  readonly numericClass: string;
  /**
   * For each class of products the tile that makes them, where a GPU was measured; undefined on the
   * cpu.
   */
  readonly tiles?: Readonly<Record<string, string>> | undefined;
  /**
   * The number of trainable parameters of the whole model, tied weights counted once, without
   * padding.
   */
  readonly params: number;
  /** The bytes of this rank's f32 parameters, padding included. */
  readonly shardBytes: number;
  /** The most bytes that the rank's process has held so far, a cpu device's memory included. */
  readonly processBytes?: number | undefined;
  readonly data: DataSize;
  /** The size of the data that is evaluated. */
  readonly valid: DataSize | undefined;
  /** What the task puts on the model, with labels that the data have told. Absent without one. */
  readonly head?: TaskHead | undefined;
}

/** What a run computes, in floating-point operations. */
export interface ComputeTold {
  readonly flopsPerToken: number;
  /**
   * The most in a second by all ranks, if each is as fast as the first is with f32 products;
   * undefined where that was not measured.
   */
  readonly peakFlops?: number | undefined;
}

/** The classes of a classifier as an evaluation finds them. */
export type ClassesTold = Pick<Figures, 'classes' | 'confusion'>;

/** What is known of a group of layers in a step. */
export interface GroupFigures {
  /** The norm of its unscaled gradients, before clipping. */
  readonly gradNorm: number;
  /**
   * The norm of its update over that of its weights before; about 1e-3 where training is healthy.
   * Undefined for a skipped step, for weights that are zeros and for those at rest off the device.
   */
  readonly updateRatio?: number | undefined;
}

/** A line of metrics.jsonl. */
export interface StepMetrics {
  /** The number of the step, from 1. */
  readonly step: number;
  /**
   * The weighted sum of losses over the targets that count, divided by their number; before the
   * update. NaN where no target counts.
   */
  readonly loss: number;
  /** The number of targets that count, over all ranks and micro-steps. */
  readonly targets: number;
  /**
   * What a task is judged by beside the loss, of the targets that were learnt, before the update:
   * the accuracy and margin of preferences. Absent for other tasks.
   */
  readonly batchFigures?: Readonly<Record<string, number>> | undefined;
  /** The norm of the unscaled gradients, before clipping; null where it is not finite. */
  readonly gradNorm: number | null;
  readonly lr: number;
  /** The loss scale; 1 where nothing is scaled. */
  readonly lossScale: number;
  /**
   * Whether the parameters stayed as they were, because of an overflow or because no target
   * counted.
   */
  readonly skipped: boolean;
  readonly stepMs: number;
  readonly tokensPerSecond: number;
  /** The tokens of all steps until this one, those of earlier commands with them. */
  readonly tokens: number;
  /** How often the data has been gone through; 0.5: half of it. */
  readonly epoch: number;
  /** The time of the evaluation after the update; undefined in a step without one. */
  readonly evalMs?: number | undefined;
  /** The time for which the step waited for the save of the step before; undefined below 1 ms. */
  readonly saveWaitMs?: number | undefined;
  /** The mean loss of the evaluation after the update; undefined in a step without one. */
  readonly validLoss?: number | undefined;
  /** By group of layers, such as wte, h.0 or ln_f; in some steps only, where somebody watches. */
  readonly groups?: Readonly<Record<string, GroupFigures>> | undefined;
  /** What a task is judged by beside the loss, such as accuracy or ndcg@10. */
  readonly figures?: Readonly<Record<string, number>> | undefined;
  /** The SHA-256 of weights and optimizer state after the update; see hashModel of nn. */
  readonly hash?: string | undefined;
  /** The numeric classes of all ranks, beside a hash: other ones need not give equal bits. */
  readonly numericClass?: string | undefined;
}

/** What rank 0 knows besides. The times are there only where somebody watches; see isWatched. */
export interface StepResources extends Partial<CommTimes> {
  /** The most bytes that this rank's device has held so far. */
  readonly peakBytes: number;
  /** The payload that this rank sent in this step. */
  readonly wireBytes: number;
}

/** The most that values at rest off the device take. */
export interface StoreBytes {
  /** The bytes in host memory. */
  readonly hostBytes: number;
  /**
   * The bytes in files, where a value that steps change has two: the last generation's and the one
   * since.
   */
  readonly diskBytes: number;
}

/** An entry of summary.json's `ranks`. What was sent is that of the training steps alone. */
export interface RankReport
  extends Pick<RankReady, 'rank' | 'device' | 'description'>,
    StoreBytes,
    CommCounts {
  readonly peakBytes: MemoryBytes;
}

/** What a rank took, or was expected to take, in the steps of one command. */
export interface RankTaken extends CommCounts, StoreBytes {
  /** The most in steps after the first; empty where there are none. */
  readonly phases: readonly PhaseBytes[];
}

/** An entry of summary.json's `check`. */
export interface RankCheck {
  readonly rank: number;
  readonly steps: number;
  readonly planned: RankTaken;
  readonly measured: RankTaken;
  /** The time that a step was expected to take; from rank 0 alone. */
  readonly stepMs?: number | undefined;
}

/** The status of a rank at the end of a step, with the payload of this step. */
export interface RankStatus extends CommTimes, Pick<CommCounts, 'bytesSent' | 'bytesReceived'> {
  readonly rank: number;
  /** The number of the step, from 1. */
  readonly step: number;
  /** What its device held, by phase. */
  readonly phases: readonly PhaseBytes[];
}

/** A save that is whole and on the disk. */
export interface SaveWritten {
  readonly step: number;
  readonly directory: string;
  /** The bytes that all ranks have written. */
  readonly bytes: number;
  /** The time from its beginning to its end, most of which overlapped with the next steps. */
  readonly ms: number;
  /** The part of that time for which the next step waited. */
  readonly waitMs: number;
}

/** A save that is no longer there under its name. */
export type SaveGone = Pick<SaveWritten, 'step' | 'directory'>;

/** What the run goes on from. */
export interface ResumedFrom {
  /** The number of steps that are done. */
  readonly step: number;
  /** The path of the save; undefined where there is none, and the run starts anew. */
  readonly path: string | undefined;
  /** Sentences about saves that can't be used, and about what differs from the saved run. */
  readonly notes: readonly string[];
}

/** The lowest loss of an evaluation so far. */
export interface Best {
  readonly step: number;
  readonly validLoss: number;
}

/** The weights that a run leaves. */
export interface FinalWeights {
  /** The step after which they were the run's. */
  readonly step: number;
  /**
   * Their loss on what is evaluated, or on the rows of the step that would follow; undefined where
   * no target counts.
   */
  readonly loss: number | undefined;
  readonly isEvaluated: boolean;
  /** The best evaluation of the run; undefined where nothing is evaluated. */
  readonly best: Best | undefined;
}

/**
 * How a rank left: with its work done, by an error of its own, by a signal, or because the job
 * ended.
 */
export type RankEndKind = 'done' | 'failed' | 'killed' | 'stopped';

/** The ranks of a job while they don't change. */
export interface MembersTold {
  readonly epoch: number;
  readonly ranks: number;
  /** The number of steps that are done. */
  readonly step: number;
  /** How many came, how many left as they were asked to, and how many were lost. */
  readonly came: number;
  readonly left: number;
  readonly lost: number;
  /** Why those have gone who were lost. */
  readonly reasons: readonly string[];
}

/** What a row of a step comes to alone, with the weights before the step. */
export interface RowTold {
  /** Its number among the rows of the step, from 0. */
  readonly row: number;
  readonly origin: RowOrigin;
  /** The mean loss of its targets. */
  readonly loss: number;
  readonly targets: number;
  /** The norm of what it adds to the gradients of the step. */
  readonly gradNorm: number;
  /** The same by group of layers, such as wte or h.0. */
  readonly layers: Readonly<Record<string, number>>;
  /** The largest magnitude that comes out of each layer. */
  readonly activations: Readonly<Record<string, number>>;
  /** The tokens of its texts or documents; none for a module's own rows. */
  readonly tokens: readonly (readonly number[])[];
}

/** What the steps of a command begin with, by which they can be computed again. */
export interface RunStart {
  /** The number of steps that are done. */
  readonly step: number;
  /** The save that the command goes on from; undefined where it begins with first weights. */
  readonly from?: string | undefined;
  /** All that was decided for the run, as JSON. */
  readonly config: Readonly<Record<string, unknown>>;
  /** A hash of the data and of the tokenizer; see tokensOf. */
  readonly tokens: string;
  /** The model that adapters are trained beside. */
  readonly base?: { readonly path: string; readonly sha256: string } | undefined;
  /** The numeric classes of all ranks, each once. */
  readonly numericClasses: readonly string[];
  /** The tiles of the ranks' GPUs by what they were measured on. */
  readonly tiles?: Readonly<Record<string, unknown>> | undefined;
  /** The hash of weights and optimizer state, with --hash-every. */
  readonly hash?: string | undefined;
}

export type RankEvent =
  | { readonly type: 'ready'; readonly ready: RankReady }
  /** From rank 0 alone. */
  | { readonly type: 'step'; readonly metrics: StepMetrics; readonly resources: StepResources }
  /** From rank 0 alone, before its first step, where somebody watches. */
  | ({ readonly type: 'compute' } & ComputeTold)
  /** From rank 0 alone: what takes a while before the first step or after the last. */
  | { readonly type: 'doing'; readonly what: string }
  /** From rank 0 alone, while the steps wait for an evaluation: its batches, then its answers. */
  | { readonly type: 'evaluating'; readonly done: number; readonly total: number }
  /** From rank 0 alone: what a classifier's evaluation after a step tells of its classes. */
  | ({ readonly type: 'classes'; readonly step: number } & ClassesTold)
  /** From rank 0 alone: text that the model made, after its prompt. */
  | { readonly type: 'sample'; readonly prompt: string; readonly text: string }
  /** From the rank that has the row, where rows are computed alone. */
  | { readonly type: 'row'; readonly row: RowTold }
  /** From rank 0 alone, before its first step; with --out. */
  | { readonly type: 'start'; readonly start: RunStart }
  /** From rank 0 alone, before its first step; with --resume. */
  | { readonly type: 'resumed'; readonly from: ResumedFrom }
  /** From rank 0 alone: the run ends before its last step; with a save where it was asked to. */
  | {
      readonly type: 'early';
      readonly step: number;
      readonly why: EarlyEnd;
      readonly save?: string | undefined;
    }
  /** From rank 0 alone: what model/ or adapter/ has. */
  | { readonly type: 'final'; readonly final: FinalWeights }
  | { readonly type: 'report'; readonly report: RankReport }
  /** From a rank of a job whose ranks change: its id in the job. */
  | { readonly type: 'member'; readonly id: number }
  /** From the process that leads such a job: its ranks have changed, and it goes on with these. */
  | ({ readonly type: 'members' } & MembersTold)
  /** With --check, after the report. */
  | { readonly type: 'check'; readonly check: RankCheck }
  /** From each rank, where somebody watches. */
  | { readonly type: 'rank'; readonly status: RankStatus }
  /** From rank 0 alone. */
  | { readonly type: 'save'; readonly save: SaveWritten }
  /** From rank 0 alone. */
  | { readonly type: 'saveGone'; readonly save: SaveGone }
  /** From rank 0 alone: what it trained is not under --out. The text says where it is, and why. */
  | { readonly type: 'misplaced'; readonly text: string }
  /** Something that a person should know and that ends nothing; each text is shown once. */
  | { readonly type: 'warning'; readonly text: string }
  /** From the process that started the rank. */
  | {
      readonly type: 'end';
      readonly rank: number;
      readonly end: RankEndKind;
      /** A message, or the signal's name. */
      readonly reason?: string | undefined;
    }
  /** With --trace; times are in ms since the Unix epoch, which ranks of one machine share. */
  | { readonly type: 'trace'; readonly rank: number; readonly events: readonly TraceEvent[] };

/** The reason why a run ended before its last step. */
export type EarlyEnd = 'patience' | 'time' | 'asked';

export type EmitRankEvent = (event: RankEvent) => void;
