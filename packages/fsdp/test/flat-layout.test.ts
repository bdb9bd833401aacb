import { FLAT_ALIGN_ELEMENTS, flatLayout, pieceOf, shardRange } from '@shardweave/fsdp';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

describe('shardRange', () => {
  it('cuts 9 elements over 8 ranks as fairscale does', () => {
    const lengths = Array.from({ length: 8 }, (_, rank) => {
      const { start, end } = shardRange(9, 8, rank);
      return end - start;
    });
    expect(lengths).toEqual([2, 2, 2, 2, 1, 0, 0, 0]);
  });

  it('gives rank 0 of two ranks the larger half: 9 -> 5, 3 -> 2, 24 -> 12', () => {
    expect(shardRange(9, 2, 0)).toEqual({ start: 0, end: 5 });
    expect(shardRange(3, 2, 0)).toEqual({ start: 0, end: 2 });
    expect(shardRange(24, 2, 0)).toEqual({ start: 0, end: 12 });
  });

  it('covers every size from 1 to 256 over 1 to 32 ranks, without gap or overlap', () => {
    for (let size = 1; size <= 256; size++) {
      for (let worldSize = 1; worldSize <= 32; worldSize++) {
        let end = 0;
        for (let rank = 0; rank < worldSize; rank++) {
          const range = shardRange(size, worldSize, rank);
          if (range.start !== end || range.end < range.start) {
            expect.fail(`size ${size}, world ${worldSize}, rank ${rank}: ${JSON.stringify(range)}`);
          }
          end = range.end;
        }
        if (end !== size) expect.fail(`size ${size}, world ${worldSize}: covered ${end}`);
      }
    }
  });
});

describe('F44 shards of every size and number', () => {
  it("are fairscale's chunks, padded to one length, for sizes 1 to 256 over 1 to 32 ranks", () => {
    for (let size = 1; size <= 256; size++) {
      for (let worldSize = 1; worldSize <= 32; worldSize++) {
        // The rule by hand: fill chunks of ceil(size / W) until nothing is left.
        const chunk = Math.floor((size + worldSize - 1) / worldSize);
        let left = size;
        for (let rank = 0; rank < worldSize; rank++) {
          const filled = Math.min(chunk, left);
          const { start, end } = shardRange(size, worldSize, rank);
          if (end - start !== filled || (filled > 0 && start !== rank * chunk)) {
            expect.fail(`size ${size}, world ${worldSize}, rank ${rank}: [${start}, ${end})`);
          }
          left -= filled;
        }
        expect(left).toBe(0);
      }
    }
  });

  it('have one length in the flat layout, and hold its parameter in order, pads last', () => {
    for (let size = 1; size <= 256; size++) {
      for (let worldSize = 1; worldSize <= 32; worldSize++) {
        const layout = flatLayout([size], worldSize);
        let next = 0;
        for (let rank = 0; rank < worldSize; rank++) {
          const { start, end } = pieceOf(layout, 0, rank);
          const isPacked = end === start || (start === 0 && next === rank * layout.shardLength);
          if (!isPacked || end > layout.shardLength) {
            expect.fail(`size ${size}, world ${worldSize}, rank ${rank}: [${start}, ${end})`);
          }
          next += end - start;
        }
        expect(next).toBe(size);
        // As small as its alignment allows.
        const aligned = Math.ceil(size / worldSize / FLAT_ALIGN_ELEMENTS) * FLAT_ALIGN_ELEMENTS;
        expect(layout.shardLength).toBe(aligned);
      }
    }
  });
});

describe('flatLayout', () => {
  it('starts every parameter and shard at a multiple of 256 bytes in 16 bits', () => {
    const layout = flatLayout([1, 129, 128, 7], 3);
    expect(layout.offsets).toEqual([0, 128, 384, 512]);
    expect(layout.elementCount).toBe(640);
    expect(layout.shardLength).toBe(256); // ceil(640 / 3) = 214, aligned up
    expect(FLAT_ALIGN_ELEMENTS * 2).toBe(256);
  });

  it('gives every element of every parameter to exactly one rank', () => {
    const sizes = fc.array(fc.integer({ min: 1, max: 1000 }), { minLength: 1, maxLength: 8 });
    fc.assert(
      fc.property(sizes, fc.integer({ min: 1, max: 9 }), (parameters, worldSize) => {
        const layout = flatLayout(parameters, worldSize);
        parameters.forEach((size, index) => {
          let owned = 0;
          for (let rank = 0; rank < worldSize; rank++) {
            const { start, end } = pieceOf(layout, index, rank);
            owned += end - start;
            expect(end).toBeLessThanOrEqual(layout.shardLength);
          }
          expect(owned).toBe(size);
        });
        expect(layout.shardLength * worldSize).toBeGreaterThanOrEqual(layout.elementCount);
      }),
    );
  });
});
