// What a rank's device holds in each phase of a step, by tag: the ledger's peak, started anew where
// a phase begins. It costs a few sums a step, and the peak over all phases stays known.

import { type Ledger, MEMORY_TAGS, type MemoryBytes } from '@shardweave/tensor-core';

/**
 * The phases in the order of a step; several micro-steps go through the first two several times.
 */
export const STEP_PHASES = ['forward', 'backward', 'norm', 'update'] as const;
export type StepPhase = (typeof STEP_PHASES)[number];

/** What was held when the total of a phase was highest; the tags add up to the total. */
export interface PhaseBytes {
  readonly phase: StepPhase;
  readonly bytes: MemoryBytes;
}

export class PhaseMemory {
  readonly #ledger: Ledger;
  #phase: StepPhase | undefined;
  #phases = new Map<StepPhase, MemoryBytes>();
  #peak: MemoryBytes;

  constructor(ledger: Ledger) {
    this.#ledger = ledger;
    ledger.resetPeak();
    this.#peak = ledger.peak();
  }

  /** Enters a phase; undefined stands for the time between steps. */
  readonly enter = (phase: StepPhase | undefined): void => {
    this.#note();
    this.#phase = phase;
    this.#ledger.resetPeak();
  };

  /** The most held since this was made, each tag by itself. */
  peak(): MemoryBytes {
    return larger(this.#peak, this.#ledger.peak());
  }

  /** The phases since the last call, which ends the present one. */
  take(): readonly PhaseBytes[] {
    this.enter(undefined);
    const phases = this.#phases;
    this.#phases = new Map();
    return STEP_PHASES.flatMap((phase) => {
      const bytes = phases.get(phase);
      return bytes === undefined ? [] : [{ phase, bytes }];
    });
  }

  #note(): void {
    this.#peak = this.peak();
    const phase = this.#phase;
    const bytes = this.#ledger.atPeak();
    if (phase !== undefined && bytes.total > (this.#phases.get(phase)?.total ?? -1)) {
      this.#phases.set(phase, bytes);
    }
  }
}

function larger(a: MemoryBytes, b: MemoryBytes): MemoryBytes {
  const names = [...MEMORY_TAGS, 'total'] as const;
  return Object.fromEntries(
    names.map((name) => [name, Math.max(a[name], b[name])]),
  ) as unknown as MemoryBytes;
}
