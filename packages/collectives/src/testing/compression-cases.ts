// Conformance: f32 that travels in fewer bytes. The expected values are computed by plain loops
// here, bit for bit, so compressed results, too, are the same on every transport.

import { fromF32Array, toF32Array, WIRE_FORMATS, type WireFormat } from '@shardweave/dtypes';
import type { ProcessGroup } from '../group/process-group.js';
import { type ConformanceCase, check, checkBytes, onRanks, rejection } from './harness.js';
import { patternElements } from './patterns.js';

/** A number that is a multiple neither of the int8 block nor of any world size. */
const COUNT = 1003;

export const compressionCases: readonly ConformanceCase[] = WIRE_FORMATS.flatMap((wire) => [
  {
    name: `as ${wire}: all-gather gives all ranks the decoded values`,
    worldSizes: [1, 2, 3, 4],
    run: (harness, worldSize) =>
      onRanks(harness, worldSize, async (group) => {
        const output = new Float32Array(COUNT * worldSize);
        await group.allGather(elements(group.rank), bytesOf(output), { dtype: 'f32', wire });
        for (let rank = 0; rank < worldSize; rank++) {
          const part = output.subarray(rank * COUNT, (rank + 1) * COUNT);
          checkBytes(bytesOf(part), bytesOf(rounded(values(rank), wire)), `rank ${rank}`);
        }
      }),
  },
  {
    name: `as ${wire}: reduce-scatter adds the decoded values in rank order`,
    worldSizes: [1, 2, 3, 4],
    run: (harness, worldSize) =>
      onRanks(harness, worldSize, async (group) => {
        const counts = Array.from({ length: worldSize }, (_, rank) => 100 + 100 * rank);
        const starts = counts.map((_, r) =>
          counts.slice(0, r).reduce((sum, count) => sum + count, 0),
        );
        const input = values(group.rank).slice(0, starts.at(-1)! + counts.at(-1)!);
        const output = new Float32Array(counts[group.rank]!);
        const options = { dtype: 'f32', op: 'mean', counts, wire } as const;
        await group.reduceScatter(bytesOf(input), bytesOf(output), options);
        const start = starts[group.rank]!;
        const end = start + output.length;
        const expected = meanOf(group, wire, (rank) => values(rank).slice(start, end), group.rank);
        checkBytes(bytesOf(output), bytesOf(expected), 'mean');
      }),
  },
  {
    name: `as ${wire}: all-reduce gives all ranks the same decoded sums`,
    worldSizes: [1, 2, 3, 4],
    run: (harness, worldSize) =>
      onRanks(harness, worldSize, async (group) => {
        const buffer = values(group.rank);
        const options = { dtype: 'f32', op: 'mean', wire } as const;
        await group.allReduce(bytesOf(buffer), bytesOf(buffer), options);
        for (let owner = 0; owner < worldSize; owner++) {
          const start = Math.floor((owner * COUNT) / worldSize);
          const end = Math.floor(((owner + 1) * COUNT) / worldSize);
          const mean = meanOf(group, wire, (rank) => values(rank).slice(start, end), owner);
          const part = buffer.subarray(start, end);
          checkBytes(bytesOf(part), bytesOf(rounded(mean, wire)), `part of rank ${owner}`);
        }
      }),
  },
  {
    name: `as ${wire}: with a residual, sums of many calls lose nothing but the last error`,
    worldSizes: [2, 3],
    run: (harness, worldSize) =>
      onRanks(harness, worldSize, async (group) => {
        const calls = 10;
        const inputs = Array.from({ length: worldSize }, (_, rank) => values(rank));
        for (const op of ['sum', 'mean'] as const) {
          const residual = new Float32Array(COUNT);
          const total = new Float64Array(COUNT);
          for (let i = 0; i < calls; i++) {
            const output = new Float32Array(COUNT);
            const options = { dtype: 'f32', op, wire, residual } as const;
            await group.allReduce(elements(group.rank), bytesOf(output), options);
            output.forEach((value, j) => {
              total[j]! += value;
            });
          }
          // What the exact total lacks is what all ranks together still hold back.
          const heldBack = new Float32Array(COUNT);
          const reduction = { dtype: 'f32', op } as const;
          await group.allReduce(bytesOf(residual), bytesOf(heldBack), reduction);
          check(
            residual.some((value) => value !== 0),
            'expected a residual',
          );
          total.forEach((sum, j) => {
            const all = inputs.reduce((acc, input) => acc + input[j]!, 0);
            const exact = all / (op === 'mean' ? worldSize : 1);
            const error = Math.abs(sum + heldBack[j]! - calls * exact);
            check(error < 0.05, `element ${j} of ${op}: ${error} lost in ${calls} calls`);
          });
        }
      }),
  },
  {
    name: `as ${wire}: a rank that calls without it is a mismatch`,
    worldSizes: [2],
    run: (harness, worldSize) =>
      onRanks(harness, worldSize, async (group) => {
        const output = new Float32Array(COUNT);
        const options = { dtype: 'f32', op: 'sum' } as const;
        const how = group.rank === 0 ? { ...options, wire } : options;
        const called = group.allReduce(elements(group.rank), bytesOf(output), how);
        const error = await rejection(called, 'MISMATCH');
        check(error.message.includes(`f32 as ${wire}`), `message: ${error.message}`);
      }),
  },
]);

function values(rank: number): Float32Array {
  return toF32Array(elements(rank), 'f32');
}

function elements(rank: number): Uint8Array {
  return patternElements(rank, COUNT, 'f32', 7);
}

function bytesOf(array: Float32Array): Uint8Array {
  return new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
}

/** The mean over ranks, with all but the owner's share rounded, added in rank order in f32. */
function meanOf(
  group: ProcessGroup,
  wire: WireFormat,
  share: (rank: number) => Float32Array,
  owner: number,
): Float32Array {
  const shares = Array.from({ length: group.worldSize }, (_, rank) =>
    rank === owner ? share(rank) : rounded(share(rank), wire),
  );
  return share(owner).map((_, i) => {
    const sum = shares.reduce((acc, part) => Math.fround(acc + part[i]!), 0);
    return Math.fround(sum / group.worldSize);
  });
}

/** What a receiver decodes, by the definitions of the formats. */
function rounded(input: Float32Array, wire: WireFormat): Float32Array {
  if (wire !== 'int8') {
    return toF32Array(fromF32Array(input, wire), wire);
  }
  const output = new Float32Array(input.length);
  for (let start = 0; start < input.length; start += 256) {
    const block = input.subarray(start, start + 256);
    const scale = Math.fround(block.reduce((max, x) => Math.max(max, Math.abs(x)), 0) / 127);
    const inverse = Math.fround(1 / scale);
    block.forEach((x, i) => {
      const integer = roundHalfEven(Math.fround(x * inverse)) + 0; // int8 has no -0
      output[start + i] = integer * scale;
    });
  }
  return output;
}

function roundHalfEven(x: number): number {
  const floor = Math.floor(x);
  const isTie = x - floor === 0.5;
  return isTie ? floor + (floor % 2 === 0 ? 0 : 1) : Math.round(x);
}
