// What a tracker records, as plain data that saving and loading leave unchanged.

import type { MemoryBytes } from '@shardweave/tensor-core';

/**
 * The phase of a sample. 'recompute' is the second forward of a checkpointed module, inside
 * backward.
 */
export type MemoryPhase = 'forward' | 'recompute' | 'backward';

/** The memory at one module: when its forward has ended, or before its backward begins. */
export interface MemorySample {
  /** The module's path below the tracked one, whose own is ''. */
  readonly name: string;
  /** The name of the module's class. */
  readonly type: string;
  readonly phase: MemoryPhase;
  /** The number of outermost forwards before the one that the sample belongs to. */
  readonly pass: number;
  /**
   * The bytes of the full parameters of the module and those below it, each counted once and as if
   * nothing were sharded.
   */
  readonly parameterBytes: number;
  /** What the device holds, by tag and in total, as its ledger counts it. */
  readonly liveBytes: MemoryBytes;
  /** What the device's pool has taken from its backend, in use and free. */
  readonly reservedBytes: number;
  /** The output bytes of all-gathers that have ended since the sample before. */
  readonly gatheredBytes: number;
  /** The output bytes of all-gathers since the tracker began. */
  readonly totalGatheredBytes: number;
  /** The bytes of those storages of the outputs that belong to no input; 0 in backward. */
  readonly activationBytes: number;
  /** The live bytes in total after the forward, minus those before it; 0 in backward. */
  readonly forwardDeltaBytes: number;
}

/** Samples in the order in which they were taken. */
export interface MemoryTrace {
  readonly samples: readonly MemorySample[];
}

/** The forward samples of the first pass in the trace: each call of a module once. */
export function firstForward({ samples }: MemoryTrace): MemorySample[] {
  const forwards = samples.filter(({ phase }) => phase === 'forward');
  return forwards.filter(({ pass }) => pass === forwards[0]!.pass);
}
