// The range of a plot's values. A spike must not flatten the rest, so by default the range is the
// one that most values of each series are in, and as much beside it as these are apart.

type Column = ArrayLike<number | null | undefined>;

export interface Range {
  readonly low: number;
  readonly high: number;
}

export interface RangeOptions {
  /** The columns' part that is visible: the first place and the last one. */
  readonly from: number;
  readonly to: number;
  readonly isLog?: boolean;
  /** Whether the range is that of all values, spikes too. */
  readonly isWhole?: boolean;
}

/** The share of a series' least values, and of its greatest, that may be out of the range. */
const SHARE = 0.02;
/** A series of fewer values is all within. */
const LEAST_VALUES = 20;
/** Quantiles are those of about so many values, which tell enough of more. */
const MOST_SORTED = 4000;
/** How far beside most values the range goes, in units of their own extent. */
const REACH = 1.5;

/** The range that shows what matters; undefined where there is no value. */
export function rangeOf(columns: readonly Column[], options: RangeOptions): Range | undefined {
  const { isLog = false, isWhole = false } = options;
  const whole = { low: Number.POSITIVE_INFINITY, high: Number.NEGATIVE_INFINITY };
  const core = { ...whole };
  for (const column of columns) {
    const own = valuesIn(column, options);
    if (own.length === 0) {
      continue;
    }
    for (const value of own) {
      whole.low = Math.min(whole.low, value);
      whole.high = Math.max(whole.high, value);
    }
    const stride = Math.ceil(own.length / MOST_SORTED);
    const sorted = (stride === 1 ? own : own.filter((_, i) => i % stride === 0)).sort(
      (a, b) => a - b,
    );
    const out = own.length < LEAST_VALUES ? 0 : Math.ceil(SHARE * sorted.length);
    core.low = Math.min(core.low, sorted[out]!);
    core.high = Math.max(core.high, sorted[sorted.length - 1 - out]!);
  }
  if (whole.low > whole.high) {
    return;
  }
  const extent = core.high - core.low || Math.abs(core.high) * 0.05 || 1;
  const isLowSpike = !isWhole && whole.low < core.low - REACH * extent;
  const isHighSpike = !isWhole && whole.high > core.high + REACH * extent;
  const range = {
    low: isLowSpike ? core.low - 0.25 * extent : whole.low,
    high: isHighSpike ? core.high + 0.25 * extent : whole.high,
  };
  const room = (range.high - range.low || extent) * 0.05;
  const padded = {
    low: range.low - (isLowSpike ? 0 : room),
    high: range.high + (isHighSpike ? 0 : room),
  };
  return isLog ? { low: 10 ** padded.low, high: 10 ** padded.high } : padded;
}

/** The number of visible values that a range leaves out. */
export function numOutside(
  columns: readonly Column[],
  { low, high }: Range,
  { from, to }: RangeOptions,
): number {
  let count = 0;
  for (const column of columns) {
    for (let i = from; i <= to; i++) {
      const value = column[i];
      count += value != null && (value < low || value > high) ? 1 : 0;
    }
  }
  return count;
}

/** The numbers in the visible part; their logarithms, where the axis is logarithmic. */
function valuesIn(column: Column, { from, to, isLog = false }: RangeOptions): number[] {
  const values: number[] = [];
  for (let i = from; i <= to; i++) {
    const value = column[i];
    if (value != null && (!isLog || value > 0)) {
      values.push(isLog ? Math.log10(value) : value);
    }
  }
  return values;
}

/** At most `most` ticks of a logarithmic axis: powers of ten, their halves, or plain numbers. */
export function logTicks({ low, high }: Range, most = 8): number[] {
  const first = Math.floor(Math.log10(low));
  const last = Math.ceil(Math.log10(high));
  const inside = (digits: readonly number[], stride = 1) => {
    const ticks: number[] = [];
    for (let power = first; power <= last; power++) {
      if (power % stride === 0) {
        ticks.push(...digits.map((digit) => Number(`${digit}e${power}`)));
      }
    }
    return ticks.filter((tick) => tick >= low && tick <= high);
  };
  if (inside([1]).length > most) {
    return inside([1], Math.ceil((last - first) / most));
  }
  const finer = [[1, 2, 5], [1, 3], [1]].map((digits) => inside(digits));
  const found = finer.find(({ length }) => length <= most && length >= 3);
  return found ?? plainTicks({ low, high }, most);
}

/** Round numbers at equal distances. */
function plainTicks({ low, high }: Range, most: number): number[] {
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const distance = power * [1, 2, 5, 10].find((digit) => digit * power >= rough)!;
  const first = Math.ceil(low / distance);
  const count = Math.floor(high / distance) - first + 1;
  return Array.from({ length: count }, (_, i) => Number(((first + i) * distance).toPrecision(12)));
}
