// f32 values travel in 16 and 8 bits. These tests check the documented error, non-finite values,
// error feedback and slices.

import { setImmediate as turn } from 'node:timers/promises';
import {
  bf16FromF32Bits,
  bf16ToF32,
  encodedByteLength,
  f16FromF32Bits,
  f16ToF32,
  f32ToBf16,
  f32ToF16,
  WIRE_FORMATS,
  WireCodec,
  type WireFormat,
} from '@shardweave/dtypes';
import { describe, expect, it, vi } from 'vitest';

const SIZES = [0, 1, 7, 15, 16, 17, 255, 256, 257, 1023, 16_384, 50_001];

const bytesOf = (values: Float32Array) => new Uint8Array(values.buffer);

function randomValues(count: number, seed = 1): Float32Array {
  let state = seed;
  return Float32Array.from({ length: count }, (_, i) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return (state / 2 ** 32 - 0.5) * (1 + (i % 700));
  });
}

/** Returns the first element that differs, which is quicker to print than two long arrays. */
function firstDifference(got: Float32Array, expected: Float32Array): number {
  return got.findIndex((value, i) => !Object.is(value, expected[i]));
}

async function roundTrip(values: Float32Array, format: WireFormat, residual?: Float32Array) {
  const codec = await WireCodec.create();
  const coded = new Uint8Array(encodedByteLength(format, values.length));
  const decoded = new Float32Array(values.length);
  await codec.encode(bytesOf(values), coded, { format, residual: residual && bytesOf(residual) });
  await codec.decode(coded, bytesOf(decoded), { format });
  return decoded;
}

/**
 * Returns half a step of the format for the element at `i`: the largest error that rounding may
 * make.
 */
function errorBound(values: Float32Array, i: number, format: WireFormat): number {
  if (format === 'int8') {
    const start = i - (i % 256);
    const block = Array.from(values.subarray(start, start + 256), Math.abs);
    return (Math.max(...block) / 254) * (1 + 1e-5);
  }
  return Math.abs(values[i]!) * (format === 'f16' ? 2 ** -11 : 2 ** -8) + 2 ** -25;
}

describe.each(WIRE_FORMATS)('%s', (format) => {
  it.each(SIZES)('keeps %i values within the documented error', async (count) => {
    const values = randomValues(count);
    const decoded = await roundTrip(values, format);
    const wrong = decoded.findIndex(
      (value, i) => !(Math.abs(value - values[i]!) <= errorBound(values, i, format)),
    );
    expect(wrong, `element ${wrong}: ${decoded[wrong]} for ${values[wrong]}`).toBe(-1);
  });

  it('what one call loses reaches later ones by the residual', async () => {
    const values = randomValues(1000).map((value) => value / 100);
    const residual = new Float32Array(values.length);
    const sums = new Float64Array(values.length);
    const calls = 50;
    for (let call = 0; call < calls; call++) {
      const decoded = await roundTrip(values, format, residual);
      decoded.forEach((value, i) => {
        sums[i]! += value;
      });
    }
    // The sum over 50 calls differs from the exact one only by the last residual.
    sums.forEach((sum, i) => {
      expect(sum + residual[i]!).toBeCloseTo(calls * values[i]!, 3);
      expect(Math.abs(residual[i]!)).toBeLessThanOrEqual(2 * errorBound(values, i, format) + 1e-3);
    });
    expect(residual.some((value) => value !== 0)).toBe(true);
  });

  it('an overflow with a residual is told once and held against no later call', async () => {
    const values = randomValues(1000);
    const residual = new Float32Array(values.length).fill(0.01);
    const bad = values.slice();
    // Infinity minus itself would be NaN, and residuals are added to every later value.
    bad.set([Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, 3e38], 300);
    residual[303] = 3e38; // The sum overflows.
    const told = await roundTrip(bad, format, residual);
    expect(told.subarray(300, 304).some(Number.isFinite)).toBe(false);
    expect(residual.every(Number.isFinite)).toBe(true);
    const decoded = await roundTrip(values, format, residual);
    expect(decoded.every(Number.isFinite)).toBe(true);
    // The rounding errors of the other elements are still there.
    expect(residual.subarray(600).some((value) => value !== 0)).toBe(true);
  });

  it.each([999, 40_001])('%i values and residuals, exactly', async (count) => {
    const values = randomValues(count, 7);
    const residual = randomValues(count, 8).map((value) => value / 50);
    const sums = values.map((value, i) => value + residual[i]!);
    const expected = plainRoundTrip(sums, format);
    const decoded = await roundTrip(values, format, residual);
    expect(firstDifference(decoded, expected)).toBe(-1);
    const lost = sums.map((sum, i) => sum - expected[i]!);
    expect(firstDifference(residual, lost)).toBe(-1);
  });

  it('gives what a new codec gives, whatever it did before', async () => {
    const used = await WireCodec.create();
    const coded = new Uint8Array(encodedByteLength(format, 40_000));
    await used.encode(bytesOf(randomValues(40_000).map((x) => x * 1e3)), coded, { format });
    for (const count of [1, 17, 255, 257, 1001]) {
      const values = randomValues(count, count);
      const got = coded.subarray(0, encodedByteLength(format, count));
      await used.encode(bytesOf(values), got, { format });
      const decoded = new Float32Array(count);
      await used.decode(got, bytesOf(decoded), { format });
      expect(firstDifference(decoded, plainRoundTrip(values, format))).toBe(-1);
    }
  });
});

/** Computes the definition of the formats, element by element. */
function plainRoundTrip(values: Float32Array, format: WireFormat): Float32Array {
  if (format === 'f16') {
    return values.map((value) => f16ToF32(f32ToF16(value)));
  }
  if (format === 'bf16') {
    return values.map((value) => bf16ToF32(f32ToBf16(value)));
  }
  const decoded = new Float32Array(values.length);
  for (let start = 0; start < values.length; start += 256) {
    const block = values.subarray(start, start + 256);
    const most = block.reduce((largest, value) => Math.max(largest, Math.abs(value)), 0);
    const scale = Math.fround(most / 127);
    const inverse = Math.fround(1 / scale);
    block.forEach((value, i) => {
      const rounded = roundToEven(Math.fround(value * inverse));
      decoded[start + i] = Math.min(127, Math.max(-127, rounded)) * scale;
    });
  }
  return decoded;
}

function roundToEven(x: number): number {
  const low = Math.floor(x);
  const isUp = x - low === 0.5 ? low % 2 !== 0 : x - low > 0.5;
  return (isUp ? low + 1 : low) + 0;
}

describe('int8', () => {
  it('encodes a block as its scale and signed bytes, rounded to nearest even', async () => {
    const codec = await WireCodec.create();
    const values = Float32Array.of(127, -127, 2.5, 3.5, -2.5, 0.4, 0);
    const coded = new Uint8Array(11);
    await codec.encode(bytesOf(values), coded, { format: 'int8' });
    expect(new DataView(coded.buffer).getFloat32(0, true)).toBe(1);
    expect([...new Int8Array(coded.buffer, 4)]).toEqual([127, -127, 2, 4, -2, 0, 0]);
  });

  it.each([Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY])(
    'makes a whole block NaN where one value is %d, and no other block',
    async (bad) => {
      const values = randomValues(600);
      values[300] = bad;
      const decoded = await roundTrip(values, 'int8');
      expect(decoded.subarray(256, 512).every(Number.isNaN)).toBe(true);
      expect(decoded.subarray(0, 256).some(Number.isNaN)).toBe(false);
      expect(decoded.subarray(512).some(Number.isNaN)).toBe(false);
    },
  );

  it('takes blocks too small for a scale as zeros', async () => {
    const decoded = await roundTrip(Float32Array.of(1e-36, -1e-40, 0), 'int8');
    expect([...decoded]).toEqual([0, 0, 0]);
  });
});

describe.each([
  { format: 'f16', narrow: f16FromF32Bits },
  { format: 'bf16', narrow: bf16FromF32Bits },
] as const)('$format', ({ format, narrow }) => {
  it('has the bits of the plain converter, at and beside every tie, and for NaN', async () => {
    // The bits have every upper half, with the lower halves at which rounding changes.
    const lower = [0, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xf000, 0xffff];
    const bits = new Uint32Array(65536 * lower.length);
    lower.forEach((low, i) => {
      for (let high = 0; high < 65536; high++) {
        bits[i * 65536 + high] = high * 65536 + low;
      }
    });
    const codec = await WireCodec.create();
    const coded = new Uint16Array(bits.length);
    const options = { format };
    await codec.encode(new Uint8Array(bits.buffer), new Uint8Array(coded.buffer), options);
    expect(coded.findIndex((got, i) => got !== narrow(bits[i]!))).toBe(-1);
  });
});

describe('sums beside the codes', () => {
  it.each(SIZES)('moves %i values into others, and leaves zeros', async (count) => {
    const codec = await WireCodec.create();
    const [target, source] = [randomValues(count + 1, 2), randomValues(count + 1, 3)];
    const expected = target.map((value, i) => (i < count ? value + source[i]! : value));
    const bytes = 4 * count;
    await codec.moveInto(bytesOf(target).subarray(0, bytes), bytesOf(source).subarray(0, bytes));
    expect(firstDifference(target, expected)).toBe(-1);
    expect(source.subarray(0, count).every((value) => Object.is(value, 0))).toBe(true);
    expect(source[count]).not.toBe(0);
  });

  it.each(SIZES)('multiplies %i values in place', async (count) => {
    const codec = await WireCodec.create();
    const values = randomValues(count + 1, 4);
    const expected = values.map((value, i) => (i < count ? value * 3 : value));
    await codec.scale(bytesOf(values).subarray(0, 4 * count), 3);
    expect(firstDifference(values, expected)).toBe(-1);
  });

  it('asks for a pause before each slice, and waits for it', async () => {
    const codec = await WireCodec.create();
    const values = randomValues(40_000);
    const seen: number[] = [];
    const pause = () =>
      Promise.resolve().then(() => {
        seen.push(values.findIndex((value, i) => value === original[i]));
      });
    const original = values.slice();
    await codec.scale(bytesOf(values), 2, { pause });
    expect(seen).toEqual([0, 16_384, 32_768]);
  });

  it('gives the event loop a turn after every 8 ms of work', async () => {
    const codec = await WireCodec.create();
    const values = new Float32Array(11 * 16_384).fill(1);
    // The clock says 3 ms for each slice.
    let now = 0;
    const clock = vi.spyOn(performance, 'now').mockImplementation(() => {
      now += 3;
      return now;
    });
    const slicesDone: number[] = [];
    try {
      let isDone = false;
      const work = codec.scale(bytesOf(values), 2).then(() => {
        isDone = true;
      });
      while (!isDone) {
        slicesDone.push(values.lastIndexOf(2) + 1);
        await turn();
      }
      await work;
    } finally {
      clock.mockRestore();
    }
    expect(slicesDone).toEqual([2, 5, 8].map((slices) => slices * 16_384));
    expect(new Set(values)).toEqual(new Set([2]));
  });

  it('refuses lengths that do not fit, naming them', async () => {
    const codec = await WireCodec.create();
    const short = codec.moveInto(new Uint8Array(8), new Uint8Array(4));
    await expect(short).rejects.toThrow(/expected 8 bytes to add, got 4/);
    const odd = codec.scale(new Uint8Array(7), 2);
    await expect(odd).rejects.toThrow(/expected whole f32 elements, got 7 bytes/);
  });
});

it('refuses lengths that do not fit, naming them', async () => {
  const codec = await WireCodec.create();
  const short = codec.encode(new Uint8Array(8), new Uint8Array(3), { format: 'f16' });
  await expect(short).rejects.toThrow(/expected 4 bytes of f16 for 2 values, got 3/);
  const odd = codec.decode(new Uint8Array(4), new Uint8Array(7), { format: 'f16' });
  await expect(odd).rejects.toThrow(/expected whole f32 elements, got 7 bytes/);
  const coded = new Uint8Array(4);
  const residual = codec.encode(new Uint8Array(8), coded, {
    format: 'f16',
    residual: new Uint8Array(4),
  });
  await expect(residual).rejects.toThrow(/expected a residual of 8 bytes, got 4/);
});

it('refuses an unknown format', async () => {
  const codec = await WireCodec.create();
  const format = 'fp16' as WireFormat; // Plain JavaScript can pass it.
  expect(() => encodedByteLength(format, 4)).toThrow(/expected one of f16, bf16, int8, got 'fp16'/);
  const [values, coded] = [new Uint8Array(16), new Uint8Array(8)];
  await expect(codec.encode(values, coded, { format })).rejects.toThrow(/got 'fp16'/);
  await expect(codec.decode(coded, values, { format })).rejects.toThrow(/got 'fp16'/);
});

it('writes no further slice once it is aborted', async () => {
  const codec = await WireCodec.create();
  const abort = new AbortController();
  const values = new Float32Array(40_000).fill(1);
  let numPauses = 0;
  const pause = async () => {
    if (++numPauses === 2) {
      abort.abort();
    }
  };
  await codec.scale(bytesOf(values), 2, { signal: abort.signal, pause });
  expect([values[16_383], values[16_384], values[39_999], numPauses]).toEqual([2, 1, 1, 2]);
});

it('writes nothing once it is aborted', async () => {
  const codec = await WireCodec.create();
  const decoded = new Float32Array(4);
  const signal = AbortSignal.abort();
  await codec.decode(new Uint8Array(8).fill(60), bytesOf(decoded), { format: 'f16', signal });
  expect([...decoded]).toEqual([0, 0, 0, 0]);
});
