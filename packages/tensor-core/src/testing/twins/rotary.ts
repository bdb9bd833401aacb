// The float64 twin of rotary position embedding takes frequencies in radians.

import { buildTwin, elementAt, type TwinArray } from './twin-array.js';

export function rotaryTwin(
  x: TwinArray,
  options: {
    /** The radians per position, one number for each pair of columns. */
    readonly frequencies: readonly number[];
    /** Returns the position of a token from its index in the leading axes: [batch, place]. */
    readonly positionOf: (token: readonly number[]) => number;
    readonly numRotated: number;
  },
): TwinArray {
  const { frequencies, positionOf, numRotated } = options;
  const half = frequencies.length;
  return buildTwin(x.shape, (index) => {
    const [column, head] = [index.at(-1)!, index.at(-2)!];
    const own = elementAt(x, index);
    if (head >= numRotated) {
      return own;
    }
    const j = column % half;
    const angle = positionOf(index.slice(0, -2)) * frequencies[j]!;
    const other = elementAt(x, [...index.slice(0, -1), column < half ? j + half : j]);
    return own * Math.cos(angle) + (column < half ? -other : other) * Math.sin(angle);
  });
}
