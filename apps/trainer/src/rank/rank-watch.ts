// What a rank notes of its steps for the people who watch the run: memory by phase, bytes on the
// wire, and how long collectives ran and were waited for. The last of these asks the device, and is
// left out where nobody watches.

import type { MemoryBytes } from '@shardweave/tensor-core';
import type { CommWatch } from './comm-watch.js';
import type { StepResources } from './events.js';
import type { OpenedRank, RankOptions } from './open-rank.js';
import { CommCounter, type CommCounts } from './step/comm-counter.js';
import { type PhaseBytes, PhaseMemory, type StepPhase } from './step/phase-memory.js';

type Whose = Pick<RankOptions, 'rank' | 'emit'>;

export class RankWatch {
  /** Counts what the training steps send. */
  readonly counter: CommCounter;
  readonly #options: Whose;
  /** Undefined where nobody watches; then nothing is reported of each step, either. */
  readonly #comm: CommWatch | undefined;
  readonly #memory: PhaseMemory;
  #before: CommCounts;
  #step = 0;
  #numSteps = 0;
  /** The most bytes that each phase held in steps after the first. */
  readonly #phases = new Map<StepPhase, MemoryBytes>();

  constructor({
    options,
    device,
    groups,
    comm,
  }: Pick<OpenedRank, 'device' | 'groups' | 'comm'> & { readonly options: Whose }) {
    this.counter = new CommCounter(groups);
    this.#options = options;
    this.#comm = comm;
    this.#memory = new PhaseMemory(device.ledger);
    this.#before = this.counter.counts();
  }

  /** Notes that step `step` (from 0) begins. */
  begin(step: number): void {
    this.#step = step + 1;
    this.#numSteps += 1;
    this.#comm?.begin();
  }

  readonly onPhase = (phase: StepPhase | undefined): void => {
    this.#memory.enter(phase);
    this.#comm?.look();
  };

  /** Notes that the step has ended. */
  end(): StepResources {
    const { rank, emit } = this.#options;
    const counts = this.counter.counts();
    const bytesSent = counts.bytesSent - this.#before.bytesSent;
    const bytesReceived = counts.bytesReceived - this.#before.bytesReceived;
    this.#before = counts;
    const times = this.#comm?.take();
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

  /** The number of steps that have begun. */
  get numSteps(): number {
    return this.#numSteps;
  }

  /** The most that each phase held in steps after the first. */
  phases(): readonly PhaseBytes[] {
    return [...this.#phases].map(([phase, bytes]) => ({ phase, bytes }));
  }

  /** The most held since the first step began, each tag by itself. */
  peak(): MemoryBytes {
    return this.#memory.peak();
  }
}
