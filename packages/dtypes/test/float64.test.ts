// Functions that no engine decides: within their stated errors of values from whole numbers of 400
// fractional bits, and of the same bits in whatever runs this.
import { fnv1a } from '@shardweave/dtypes';
import { cosPi64, exp64, floorLog2, log64, pow64 } from '@shardweave/dtypes/float64';
import { describe, expect, it } from 'vitest';

const BITS = 400n;
const ONE = 1n << BITS;
const LN2 = sum((n) => ONE / (n << n), 1n);
const PI = 4n * (4n * arcTangent(5n) - arcTangent(239n));

/** A real number: value / ONE * 2^power. */
type Real = { readonly value: bigint; readonly power: bigint };

/** Adds what `term` gives from `first` on, until it is 0. */
function sum(term: (n: bigint) => bigint, first: bigint): bigint {
  let total = 0n;
  for (let n = first, next = term(n); next !== 0n; n++, next = term(n)) {
    total += next;
  }
  return total;
}

/** arctan(1 / x). */
function arcTangent(x: bigint): bigint {
  return sum((n) => ((-1n) ** n * ONE) / (x ** (2n * n + 1n) * (2n * n + 1n)), 0n);
}

/** The significant bits and the exponent of a normal float64. */
function parts(x: number): Real {
  const view = new DataView(new ArrayBuffer(8));
  view.setFloat64(0, Math.abs(x));
  const bits = view.getBigUint64(0);
  const whole = (bits & ((1n << 52n) - 1n)) | (1n << 52n);
  return { value: x < 0 ? -whole : whole, power: (bits >> 52n) - 1075n };
}

function fixed(x: number): bigint {
  const { value, power } = x === 0 ? { value: 0n, power: 0n } : parts(x);
  const shift = power + BITS;
  return shift >= 0n ? value << shift : value >> -shift;
}

function expOf(x: bigint): Real {
  const power = (2n * x + LN2) / (2n * LN2) - (2n * x + LN2 < 0n ? 1n : 0n);
  const rest = x - power * LN2;
  let term = ONE;
  const terms = (n: bigint) => {
    term = (term * rest) / ONE / n;
    return term;
  };
  return { value: ONE + sum(terms, 1n), power };
}

function logOf(x: number): bigint {
  const { value, power } = parts(x);
  const m = value << (BITS - 52n); // in [1, 2)
  const s = ((m - ONE) * ONE) / (m + ONE);
  let odd = s;
  const terms = (n: bigint) => {
    odd = (((odd * s) / ONE) * s) / ONE;
    return odd / (2n * n + 1n);
  };
  return 2n * (s + sum(terms, 1n)) + (power + 52n) * LN2;
}

function cosPiOf(x: number): bigint {
  const angle = ((fixed(x) * PI) / ONE) % (2n * PI);
  let term = ONE;
  const terms = (n: bigint) => {
    term = -((((term * angle) / ONE) * angle) / ONE) / (2n * n * (2n * n - 1n));
    return term;
  };
  return ONE + sum(terms, 1n);
}

/** By how many units in its last place `got` is off. */
function unitsOff(got: number, { value, power }: Real): number {
  const { value: own, power: unit } = parts(got);
  const shift = power - unit;
  const want = shift >= 0n ? value << shift : value >> -shift;
  return Math.abs(Number((own << BITS) - want) / Number(ONE));
}

/** The largest error at `count` points of a sequence that no engine decides either. */
function worst(count: number, errorAt: (next: () => number) => number): number {
  let state = 20_261_129;
  const next = () => {
    state = (state * 48_271) % 0x7fffffff;
    return state / 0x7fffffff;
  };
  return Math.max(...Array.from({ length: count }, () => errorAt(next)));
}

describe('the stated error of', () => {
  it('exp64 is 0.9 units in the last place', () => {
    const near = worst(300, (next) => {
      const x = 4 * next() - 2;
      return unitsOff(exp64(x), expOf(fixed(x)));
    });
    const far = worst(300, (next) => {
      const x = 1400 * next() - 700;
      return unitsOff(exp64(x), expOf(fixed(x)));
    });
    expect(Math.max(near, far)).toBeLessThan(0.9);
  });

  it('log64 is 0.52 units in the last place', () => {
    const error = worst(300, (next) => {
      const x = next() < 0.5 ? 3 * next() : exp64(1400 * next() - 700);
      return unitsOff(log64(x), { value: logOf(x), power: 0n });
    });
    expect(error).toBeLessThan(0.52);
  });

  it('pow64 is 1 unit in the last place near 1, and 16 at the ends of the range', () => {
    const powerError = (range: number) =>
      worst(300, (next) => {
        const base = next() < 0.5 ? next() : 10 + 1e6 * next();
        const exponent = ((2 * next() - 1) * range) / Math.abs(log64(base));
        const product = (logOf(base) * fixed(exponent)) / ONE;
        return unitsOff(pow64(base, exponent), expOf(product));
      });
    expect(powerError(16)).toBeLessThan(1);
    expect(powerError(700)).toBeLessThan(16);
  });

  it('cosPi64 is 1.4 units in the last place', () => {
    const error = worst(600, (next) => {
      const x = next() < 0.5 ? next() : 100 * next() - 50;
      return unitsOff(cosPi64(x), { value: cosPiOf(x), power: 0n });
    });
    expect(error).toBeLessThan(1.4);
  });
});

it('powers of whole numbers are exact, and so are quarters of a turn', () => {
  for (let n = -1074; n < 1024; n++) {
    expect(pow64(2, n)).toBe(2 ** n);
  }
  for (let n = 0; n <= 22; n++) {
    expect(pow64(10, n)).toBe(Number(`1e${n}`));
  }
  expect([0, 0.5, 1, 1.5, 2, -0.5, 7.5].map(cosPi64)).toEqual([1, 0, -1, 0, 1, 0, 0]);
});

it('floorLog2 is exact on both sides of each power of two', () => {
  for (let n = 1; n <= 52; n++) {
    const power = Number(1n << BigInt(n));
    expect([power - 1, power, 2 * power - 1].map(floorLog2)).toEqual([n - 1, n, n]);
  }
});

it('ends of the range are those of Math', () => {
  expect([0, -0, 710, -746, Number.NaN, Infinity, -Infinity, -745].map(exp64)).toEqual([
    1,
    1,
    Infinity,
    0,
    Number.NaN,
    Infinity,
    0,
    5e-324,
  ]);
  expect([1, 0, -1, Number.NaN, Infinity].map(log64)).toEqual([
    0,
    -Infinity,
    Number.NaN,
    Number.NaN,
    Infinity,
  ]);
  expect(log64(5e-324)).toBeCloseTo(-744.4400719213812, 12);
  const powers = [
    [0, 5],
    [0, -1],
    [0.9, 1e9],
    [5, 0],
    [Number.NaN, 2],
    [2, 2000],
    [1e300, -1e-300],
  ] as const;
  expect(powers.map(([base, exponent]) => pow64(base, exponent))).toEqual([
    0,
    Infinity,
    0,
    1,
    Number.NaN,
    Infinity,
    1,
  ]);
});

it('the bits are those that every engine gives', () => {
  const values = Float64Array.from({ length: 4000 }, (_, i) => {
    const x = (i + 1) / 1000;
    return [exp64(x - 2), log64(x), pow64(1e4, -x / 4), cosPi64(x)][i % 4]!;
  });
  expect(fnv1a(new Uint32Array(values.buffer)).toString(16)).toBe('825f748');
});
