// These tests check the frequencies of rotary embeddings with Llama 3's scaling, and what the op
// refuses.

import { Device, rotaryEmbedding, rotaryFrequencies } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { expect, test } from 'vitest';

const LLAMA = { factor: 8, lowFrequencyFactor: 1, highFrequencyFactor: 4, originalLength: 8192 };

/** Returns the frequencies in radians per position. */
async function frequenciesOf(options: Parameters<typeof rotaryFrequencies>[1]): Promise<number[]> {
  const device = new Device(createReferenceBackend());
  const words = await rotaryFrequencies(device, options).toArray();
  const half = words.length / 2;
  return Array.from(
    { length: half },
    (_, j) => (words[j]! / 2 ** 32 + words[half + j]! / 2 ** 64) * 2 * Math.PI,
  );
}

test('frequencies are powers of the base', async () => {
  const found = await frequenciesOf({ headDim: 8, base: 10_000 });
  [1, 0.1, 0.01, 0.001].forEach((frequency, j) => {
    expect(found[j]).toBeCloseTo(frequency, 15);
  });
});

test('long wavelengths are stretched whole, short ones not, those between in part', async () => {
  const plain = await frequenciesOf({ headDim: 128, base: 500_000 });
  const scaled = await frequenciesOf({ headDim: 128, base: 500_000, scaling: LLAMA });
  plain.forEach((frequency, j) => {
    const wavelength = (2 * Math.PI) / frequency;
    // The original length is 8192. Wavelengths above it are long, and those below 2048 are short.
    const expected =
      wavelength < 2048
        ? frequency
        : wavelength > 8192
          ? frequency / 8
          : ((8192 / wavelength - 1) / 3) * frequency +
            ((4 - 8192 / wavelength) / 3) * (frequency / 8);
    expect(scaled[j]! / expected).toBeCloseTo(1, 11);
  });
  const ratios = plain.map((frequency, j) => scaled[j]! / frequency);
  expect(ratios.filter((ratio) => ratio > 0.126 && ratio < 0.999).length).toBeGreaterThan(2);
});

test('a factor alone divides all frequencies', async () => {
  const plain = await frequenciesOf({ headDim: 8 });
  const scaled = await frequenciesOf({ headDim: 8, scaling: { factor: 8 } });
  scaled.forEach((frequency, j) => {
    expect((frequency * 8) / plain[j]!).toBeCloseTo(1, 11);
  });
});

test('what does not fit is named', () => {
  const device = new Device(createReferenceBackend());
  device.scope(() => {
    const frequencies = rotaryFrequencies(device, { headDim: 4 });
    const x = device.zeros([2, 3, 2, 4]);
    expect(() => rotaryFrequencies(device, { headDim: 5 })).toThrow(
      'expected an even headDim, got 5',
    );
    expect(() => rotaryFrequencies(device, { headDim: 4, base: 1 })).toThrow('expected base');
    const broken = { ...LLAMA, factor: 0 };
    for (const scaling of [broken, { factor: 0 }, { factor: 8, originalLength: 8192 }]) {
      expect(() => rotaryFrequencies(device, { headDim: 4, scaling })).toThrow('the factors');
    }
    expect(() => rotaryEmbedding(device.zeros([2, 3, 2, 6]), { frequencies })).toThrow(
      'got [2, 3, 2, 6] and u32 [2, 2]',
    );
    const positions = device.tensor(Int32Array.of(1, 2), [2]);
    expect(() => rotaryEmbedding(x, { frequencies, positions })).toThrow(
      'expected positions [3] or [2, 3], got [2]',
    );
    expect(() => rotaryEmbedding(x, { frequencies, numRotated: 3 })).toThrow('within 2 heads');
    const listed = device.tensor(Int32Array.of(1, 2, 3), [3]);
    expect(() => rotaryEmbedding(x, { frequencies, positions: listed, offset: 2 })).toThrow(
      'none beside positions',
    );
  });
  expect(device.memory().live.total).toBe(0);
});
