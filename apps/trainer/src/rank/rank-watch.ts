// What a rank notes of its steps for the people who look at the run: memory by phase, bytes on the
// wire, and how long collectives ran and were waited for. The last of these asks the device, and is
// left out where nobody looks.

import type { Device, MemoryBytes } from '@shardweave/tensor-core';
import type { CommCounter, CommCounts } from './comm-counter.js';
import type { CommWatch } from './comm-watch.js';
import type { EmitRankEvent, StepResources } from './events.js';
import { type PhaseBytes, PhaseMemory, type StepPhase } from './phase-memory.js';

export interface RankWatchOptions {
  readonly rank: number;
  readonly device: Device;
  /** Counts what the training steps send. */
  readonly counter: CommCounter;
  /** Undefined where nobody looks: nothing is told of each step either. */
  readonly comm: CommWatch | undefined;
  readonly emit: EmitRankEvent;
}

export class RankWatch {
  readonly #options: RankWatchOptions;
  readonly #memory: PhaseMemory;
  #before: CommCounts;
  #step = 0;
  #numSteps = 0;
  /** The most bytes that each phase held in steps behind the first. */
  readonly #phases = new Map<StepPhase, MemoryBytes>();

  constructor(options: RankWatchOptions) {
    this.#options = options;
    this.#memory = new PhaseMemory(options.device.ledger);
    this.#before = options.counter.counts();
  }

  /** Step `step` (from 0) begins. */
  begin(step: number): void {
    this.#step = step + 1;
    this.#numSteps += 1;
    this.#options.comm?.begin();
  }

  readonly onPhase = (phase: StepPhase): void => {
    this.#memory.enter(phase);
    this.#options.comm?.look();
  };

  /** The step that began last has ended. */
  end(): StepResources {
    const { rank, counter, comm, emit } = this.#options;
    const counts = counter.counts();
    const bytesSent = counts.bytesSent - this.#before.bytesSent;
    const bytesReceived = counts.bytesReceived - this.#before.bytesReceived;
    this.#before = counts;
    const times = comm?.take();
    const phases = this.#memory.take();
    for (const { phase, bytes } of this.#numSteps > 1 ? phases : []) {
      if (bytes.total > (this.#phases.get(phase)?.total ?? -1)) {
        this.#phases.set(phase, bytes);
      }
    }
    if (times !== undefined) {
      const step = this.#step;
      emit({
        type: 'rank',
        status: { rank, step, phases, bytesSent, bytesReceived, ...times },
      });
    }
    return { peakBytes: this.#memory.peak().total, wireBytes: bytesSent, ...times };
  }

  /** Steps that have begun. */
  get numSteps(): number {
    return this.#numSteps;
  }

  /** What each phase held at most in steps behind the first. */
  phases(): readonly PhaseBytes[] {
    return [...this.#phases].map(([phase, bytes]) => ({ phase, bytes }));
  }

  /** The most held since the first step began, each tag on its own. */
  peak(): MemoryBytes {
    return this.#memory.peak();
  }
}
