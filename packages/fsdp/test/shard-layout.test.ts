// These tests check where parameters and their shards lie: the arithmetic, and the bytes of a
// model's shards by it.

import { FullyShardedDataParallel, pieceOf, shardLayout } from '@shardweave/fsdp';
import { loadLocalStateDict, localStateDict, summonFullParams } from '@shardweave/fsdp/fairscale';
import { AdamW, loadStateDict, Module, stateDict } from '@shardweave/nn';
import { FLAT_ALIGN_ELEMENTS } from '@shardweave/nn/flat';
import { type Device, sum, type Tensor } from '@shardweave/tensor-core';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { onRanks } from '../../../tooling/test-kit/index.ts';
import { wrapIn } from './support/sharding.js';

/** This module has parameters of the given sizes, whose elements are 1, 2, 3 and so on. */
class Counting extends Module<[], Tensor[]> {
  constructor(device: Device, sizes: readonly number[]) {
    super(device);
    let next = 1;
    sizes.forEach((size, index) => {
      const values = Float32Array.from({ length: size }, () => next++);
      this.parameter(`p${index}`, device.tensor(values, [size]));
    });
  }
  forward(): Tensor[] {
    return this.parameters().map((parameter) => sum(parameter));
  }
}

describe('shards of every size and number', () => {
  it.each([1, 2, 3, 5, 8])(
    'put one after another are the parameters, each at a multiple of 128, and zeros: %i ranks',
    async (worldSize) => {
      const SIZES = [1, 127, 128, 129, 300, 7];
      const shards = await onRanks(worldSize, async ({ device, group }) => {
        const model = wrapIn({ group })(new Counting(device, SIZES));
        const { data } = (await localStateDict(model)).get('flat_param_0')!;
        return [...new Float32Array(data.slice().buffer)];
      });
      expect(new Set(shards.map(({ length }) => length)).size).toBe(1);
      const whole = shards.flat();
      const expected = new Array(whole.length).fill(0);
      let [offset, value] = [0, 1];
      for (const size of SIZES) {
        for (let i = 0; i < size; i++) {
          expected[offset + i] = value++;
        }
        offset += Math.ceil(size / 128) * 128;
      }
      expect(whole).toEqual(expected);
      expect(whole.length).toBeLessThan(offset + worldSize * 128);
    },
  );

  it('have one length in the flat layout, and hold its parameter in order, pads last', () => {
    for (let size = 1; size <= 256; size++) {
      for (let worldSize = 1; worldSize <= 32; worldSize++) {
        const layout = shardLayout([size], worldSize);
        let next = 0;
        for (let rank = 0; rank < worldSize; rank++) {
          const { start, length } = pieceOf(layout, 0, rank);
          const isPacked = length === 0 || (start === 0 && next === rank * layout.shardLength);
          if (!isPacked || start + length > layout.shardLength) {
            expect.fail(`size ${size}, world ${worldSize}, rank ${rank}: ${length} at ${start}`);
          }
          next += length;
        }
        expect(next).toBe(size);
        // A shard is as small as its alignment allows.
        const aligned = Math.ceil(size / worldSize / FLAT_ALIGN_ELEMENTS) * FLAT_ALIGN_ELEMENTS;
        expect(layout.shardLength).toBe(aligned);
      }
    }
  });
});

it.each([1, 2])(
  'a parameter without elements, alone in its flat, steps and moves over %i ranks',
  (n) =>
    onRanks(n, async ({ device, group }) => {
      const options = { processGroup: group, flattenParameters: false };
      const model = new FullyShardedDataParallel(new Counting(device, [3, 0]), options);
      await device.scope(async () => {
        const [loss] = (await model.call()) as Tensor[];
        await loss!.backward();
      });
      await new AdamW(model.parameters(), { lr: 1, weightDecay: 0 }).step();
      await summonFullParams(model, () => {});
      await loadLocalStateDict(model, await localStateDict(model));
      const state = await stateDict(model);
      await loadStateDict(model, state);
      expect(new Float32Array(state.get('p0')!.data.slice().buffer)[1]).toBeCloseTo(1);
      expect(state.get('p1')!.data.byteLength).toBe(0);
    }),
);

describe('shardLayout', () => {
  it('starts every parameter and shard at a multiple of 256 bytes in 16 bits', () => {
    const layout = shardLayout([1, 129, 128, 7], 3);
    expect(layout.offsets).toEqual([0, 128, 384, 512]);
    expect(layout.elementCount).toBe(640);
    expect(layout.shardLength).toBe(256); // This is ceil(640 / 3) = 214, aligned up.
    expect(FLAT_ALIGN_ELEMENTS * 2).toBe(256);
  });

  it('gives every element of every parameter to exactly one rank', () => {
    const sizes = fc.array(fc.integer({ min: 1, max: 1000 }), { minLength: 1, maxLength: 8 });
    fc.assert(
      fc.property(sizes, fc.integer({ min: 1, max: 9 }), (parameters, worldSize) => {
        const layout = shardLayout(parameters, worldSize);
        parameters.forEach((size, index) => {
          let owned = 0;
          for (let rank = 0; rank < worldSize; rank++) {
            const { start, length } = pieceOf(layout, index, rank);
            owned += length;
            expect(start + length).toBeLessThanOrEqual(layout.shardLength);
          }
          expect(owned).toBe(size);
        });
        expect(layout.shardLength * worldSize).toBeGreaterThanOrEqual(layout.elementCount);
      }),
    );
  });
});
