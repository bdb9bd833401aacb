// The search for the scale, and the minimum, of a sub-block: steps of a few widths are tried. Each
// gives every number its nearest code, and the codes give the line through the numbers whose
// squared error is least (linear regression of numbers on codes). The best line is kept.

/** Numbers are about `scale * code - minimum`; neither scale nor minimum is negative. */
export interface RangeFit {
  readonly scale: number;
  readonly minimum: number;
}

/** Numbers [from, from + count) of `values`. */
interface Span {
  readonly values: Float32Array;
  readonly from: number;
  readonly count: number;
}

/**
 * How many steps the range has in each trial, from the codes' own number of steps. More steps than
 * there are codes cut the highest numbers off, so that all others have smaller errors.
 */
const EXTRA_STEPS = [-1, -0.7, -0.4, -0.1, 0.2, 0.5, 0.8, 1.1, 1.5, 2];

/** The fit of codes 0 to `most`. */
export function fitRange({ values, from, count }: Span, most: number): RangeFit {
  let least = 0;
  let highest = values[from]!;
  let sum = 0;
  for (let i = from; i < from + count; i++) {
    const value = values[i]!;
    least = Math.min(value, least);
    highest = Math.max(value, highest);
    sum += value;
  }
  const range = highest - least;
  if (range === 0) {
    return { scale: 0, minimum: -least };
  }
  let best: RangeFit = { scale: range / most, minimum: -least };
  let bestGain = Number.NEGATIVE_INFINITY;
  for (const extra of EXTRA_STEPS) {
    const inverse = (most + extra) / range;
    let codes = 0;
    let squares = 0;
    let products = 0;
    for (let i = from; i < from + count; i++) {
      const value = values[i]!;
      const code = Math.min(most, Math.floor((value - least) * inverse + 0.5));
      codes += code;
      squares += code * code;
      products += code * value;
    }
    let scale = (count * products - codes * sum) / (count * squares - codes * codes);
    let minimum = (scale * codes - sum) / count;
    if (!(minimum > 0)) {
      minimum = 0;
      scale = products / squares;
    }
    // The error is the sum of the numbers' squares less this.
    const gain = scale * products - minimum * sum;
    if (gain > bestGain && scale > 0) {
      best = { scale, minimum };
      bestGain = gain;
    }
  }
  return best;
}

/** The scale, of either sign, of codes -32 to 31. */
export function fitScale({ values, from, count }: Span): number {
  let largest = 0;
  for (let i = from; i < from + count; i++) {
    largest = Math.abs(values[i]!) > Math.abs(largest) ? values[i]! : largest;
  }
  if (largest === 0) {
    return 0;
  }
  let best = 0;
  let bestGain = 0;
  for (const extra of EXTRA_STEPS) {
    // The lowest code has the largest magnitude, so the largest number gets it.
    const inverse = (-32 - extra) / largest;
    let squares = 0;
    let products = 0;
    for (let i = from; i < from + count; i++) {
      const value = values[i]!;
      const code = Math.max(-32, Math.min(31, Math.floor(value * inverse + 0.5)));
      squares += code * code;
      products += code * value;
    }
    const gain = (products * products) / squares;
    if (gain > bestGain) {
      best = products / squares;
      bestGain = gain;
    }
  }
  return best;
}
