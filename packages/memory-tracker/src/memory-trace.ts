// What a tracker records: plain data, the same after saving and loading.

import type { MemoryBytes } from '@shardweave/tensor-core';

/** 'recompute' is the second forward of a checkpointed module, inside backward. */
export type MemoryPhase = 'forward' | 'recompute' | 'backward';

/** The memory at one module: when its forward has ended, or before its backward begins. */
export interface MemorySample {
  /** The module's path below the tracked one; '' for that itself. */
  readonly name: string;
  /** The name of the module's class. */
  readonly type: string;
  readonly phase: MemoryPhase;
  /** Outermost forwards of the tracked modules before the one it belongs to. */
  readonly pass: number;
  /** Full parameters of the module and those below it, each once, whatever is sharded. */
  readonly parameterBytes: number;
  /** What the device holds, by tag and in total: its ledger's count. */
  readonly liveBytes: MemoryBytes;
  /** What the device's pool has of its backend, in use and free. */
  readonly reservedBytes: number;
  /** Outputs of all-gathers that have ended since the sample before. */
  readonly gatheredBytes: number;
  /** The same since the tracker began. */
  readonly totalGatheredBytes: number;
  /** Storages of the outputs that are none of an input; 0 in backward. */
  readonly activationBytes: number;
  /** Live bytes in total after the forward, less those before it; 0 in backward. */
  readonly forwardDeltaBytes: number;
}

/** Samples in the order in which they were taken. */
export interface MemoryTrace {
  readonly samples: readonly MemorySample[];
}

/** The forward samples of the first pass that the trace holds: each call of a module once. */
export function firstForward({ samples }: MemoryTrace): MemorySample[] {
  const forwards = samples.filter(({ phase }) => phase === 'forward');
  return forwards.filter(({ pass }) => pass === forwards[0]!.pass);
}
