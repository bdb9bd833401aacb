// Means over steps, which show the trend of what is noisy.

/** What the slider offers, in steps; 1: no mean. */
export const SMOOTHINGS: readonly number[] = [
  ...[1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000],
];
/** A shorter run is read step by step. */
const LEAST_STEPS = 500;
/** A mean over a fiftieth of a run takes the noise away and keeps its turns. */
const SHARE = 50;

/** The smoothing of a run of so many steps where nobody has chosen one. */
export function ownSmoothing(numSteps: number): number {
  return numSteps < LEAST_STEPS ? 1 : SMOOTHINGS.findLast((steps) => steps <= numSteps / SHARE)!;
}

/**
 * An exponential mean over about `width` steps. A value counts for the steps since the one before,
 * so that a run of which every tenth step is known has the same mean. A step without a value stays
 * without.
 */
export function smoothed<None extends null | undefined>(
  values: readonly (number | None)[],
  steps: readonly (number | undefined)[],
  width: number,
): (number | None)[] {
  const keep = 1 - 1 / width;
  let mean = 0;
  let weight = 0;
  let before: number | undefined;
  return values.map((value, i) => {
    if (value === null || value === undefined) {
      return value;
    }
    const step = steps[i]!;
    const kept = keep ** Math.max(1, step - (before ?? step - 1));
    before = step;
    mean = kept * mean + (1 - kept) * value;
    weight = kept * weight + (1 - kept);
    return mean / weight;
  });
}
