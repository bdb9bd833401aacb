// Keeps the drawn shape of many steps in few lines. Steps are cut into buckets of a power of two,
// of which each keeps its ends and extremes. So thinning again keeps what thinning at once does:
// 0..7 and 8..15 are the halves of 0..15, and the extremes of halves hold those of the whole.

import type { StepLine } from '../../output/run-records.js';

/** Up to so many steps a run is kept whole. A line takes some 200 bytes of a page. */
export const MOST_LINES = 20_000;
/** The buckets by loss keep at most four lines each, and have three tenths of the lines. */
const LOSS_SHARE = 0.3 / 4;
/** The other series share as many lines between them. */
const SERIES = [
  ...(['gradNorm', 'lr', 'tokensPerSecond', 'stepMs', 'collectiveMs', 'exposedMs'] as const),
  ...(['wireBytes', 'peakBytes', 'validLoss'] as const),
];
const SERIES_SHARE = 0.3 / (2 * SERIES.length);
/** Evaluations are kept while they take no more than this share. */
const EVALUATED_SHARE = 0.1;

/**
 * Picks of lines, in the order of steps, those that show what all of them do: at most seven tenths
 * of `most`, where there are more than `most`; else all of them.
 */
export function thinSteps(lines: readonly StepLine[], most = MOST_LINES): readonly StepLine[] {
  if (lines.length <= most) {
    return lines;
  }
  const kept = new Set<StepLine>([lines[0]!, lines.at(-1)!]);
  const evaluated = lines.filter(isEvaluated);
  if (evaluated.length <= most * EVALUATED_SHARE) {
    keepAll(kept, evaluated);
  }
  for (const bucket of bucketsOf(lines, most * LOSS_SHARE)) {
    keepAll(kept, [bucket[0]!, bucket.at(-1)!, ...extremes(bucket, 'loss')]);
  }
  for (const bucket of bucketsOf(lines, most * SERIES_SHARE)) {
    keepAll(
      kept,
      SERIES.flatMap((name) => extremes(bucket, name)),
    );
  }
  return lines.filter((line) => kept.has(line));
}

/** The lines of a run as it goes on, thinned whenever there are too many. */
export class ThinnedSteps {
  readonly #most: number;
  #lines: StepLine[] = [];
  #numSteps = 0;

  /** @param most the most lines that are kept */
  constructor(most = MOST_LINES) {
    this.#most = most;
  }

  get lines(): readonly StepLine[] {
    return this.#lines;
  }

  /** The number of lines that were added, most of which may be gone. */
  get numSteps(): number {
    return this.#numSteps;
  }

  /** Adds a line; a step that is run again replaces the earlier one, and those after it. */
  add(line: StepLine): void {
    while (this.#lines.length > 0 && this.#lines.at(-1)!.step >= line.step) {
      this.#lines.pop();
      this.#numSteps--;
    }
    this.#numSteps++;
    this.#lines.push(line);
    if (this.#lines.length > this.#most) {
      this.#lines = [...thinSteps(this.#lines, this.#most)];
    }
  }

  clear(): void {
    this.#lines = [];
    this.#numSteps = 0;
  }
}

/** Whether a line has what its neighbours have not, beside the series. */
const isEvaluated = ({ validLoss, figures, saveWaitMs }: StepLine) =>
  validLoss != null || figures != null || (saveWaitMs ?? 0) > 0;

function keepAll(kept: Set<StepLine>, lines: readonly StepLine[]): void {
  for (const line of lines) {
    kept.add(line);
  }
}

/** Cuts lines into at most `most` buckets of steps, and where steps are dense into half as many. */
function* bucketsOf(lines: readonly StepLine[], most: number): Generator<readonly StepLine[]> {
  const span = lines.at(-1)!.step + 1;
  const size = 2 ** Math.max(0, Math.ceil(Math.log2(span / Math.floor(most))));
  let first = 0;
  for (let i = 1; i <= lines.length; i++) {
    const isEnd =
      i === lines.length ||
      Math.floor(lines[i]!.step / size) !== Math.floor(lines[first]!.step / size);
    if (isEnd) {
      yield lines.slice(first, i);
      first = i;
    }
  }
}

/** The lines with the least and the most of a series; none where it has no values. */
function extremes(lines: readonly StepLine[], name: 'loss' | (typeof SERIES)[number]): StepLine[] {
  let [least, most]: (StepLine | undefined)[] = [];
  for (const line of lines) {
    const value = line[name];
    if (value == null) {
      continue;
    }
    if (least === undefined || value < least[name]!) {
      least = line;
    }
    if (most === undefined || value > most[name]!) {
      most = line;
    }
  }
  return least === undefined ? [] : [least, most!];
}
