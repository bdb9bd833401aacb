// Which steps have a line, and what a line says of the steps since the last one and of the time.

import type { StepMetrics } from '../rank/events.js';

/** The first steps have a line each, however short they are. */
const FIRST_STEPS = 10;
/** For the first minute there is a line in half a second at most, which eyes can follow. */
const OFTEN_UNTIL_MS = 60_000;
const OFTEN_MS = 500;
/** Afterwards there is a line in so long. */
const RARE_MS = 10_000;

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
    const betweenMs = elapsedMs > OFTEN_UNTIL_MS ? RARE_MS : OFTEN_MS;
    const isPaced = this.#numSteps <= FIRST_STEPS || atMs - this.#lineMs >= betweenMs;
    const isAsked = logEvery === undefined ? isPaced : step % logEvery === 0;
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
