// Which steps have a line, and what a line says of the steps since the last one and of the time.

import type { StepMetrics } from '../rank/events.js';

/** Until so long after the first step each one has a line. */
const ALL_UNTIL_MS = 60_000;
/** Afterwards there is a line in so long. */
const BETWEEN_MS = 10_000;

export interface StepPaceOptions {
  /** The number of the run's last step. */
  readonly steps: number;
  /** A step in so many has a line; undefined: lines become rarer by themselves. */
  readonly logEvery: number | undefined;
  /** A clock in milliseconds. Default performance.now. */
  readonly now?: (() => number) | undefined;
}

/** What is known of a run after a step. */
export interface Pace {
  readonly isDue: boolean;
  /** The mean loss over the targets since the last line; NaN where none counted. */
  readonly loss: number;
  /** The time since the first step of this command began. */
  readonly elapsedMs: number;
  readonly leftMs: number;
}

export class StepPace {
  readonly #options: StepPaceOptions;
  #startMs = 0;
  /** The end of the first step, which compiles and so says little of the others. */
  #warmMs = 0;
  #numSteps = 0;
  #lineMs = Number.NEGATIVE_INFINITY;
  #lossSum = 0;
  #numTargets = 0;

  constructor(options: StepPaceOptions) {
    this.#options = options;
  }

  /** Takes a step of this command; evaluations and saves count as time, too. */
  add({ step, stepMs, loss, targets, skipped, validLoss }: StepMetrics): Pace {
    const { steps, logEvery, now = () => performance.now() } = this.#options;
    const atMs = now();
    this.#numSteps += 1;
    const isFirst = this.#numSteps === 1;
    if (isFirst) {
      this.#startMs = atMs - stepMs;
      this.#warmMs = atMs;
    }
    if (targets > 0) {
      this.#lossSum += loss * targets;
      this.#numTargets += targets;
    }
    const elapsedMs = atMs - this.#startMs;
    const isRare = elapsedMs > ALL_UNTIL_MS && atMs - this.#lineMs < BETWEEN_MS;
    const isAsked = logEvery === undefined ? !isRare : step % logEvery === 0;
    const isDue = isAsked || isFirst || step === steps || skipped || validLoss !== undefined;
    const meanLoss = this.#numTargets === 0 ? Number.NaN : this.#lossSum / this.#numTargets;
    if (isDue) {
      this.#lineMs = atMs;
      [this.#lossSum, this.#numTargets] = [0, 0];
    }
    const eachMs = isFirst ? stepMs : (atMs - this.#warmMs) / (this.#numSteps - 1);
    return { isDue, loss: meanLoss, elapsedMs, leftMs: eachMs * (steps - step) };
  }
}
