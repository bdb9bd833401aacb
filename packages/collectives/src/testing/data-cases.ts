// Conformance: what every operation delivers, for dtypes, sizes and world sizes.

import { byteSize, type ReduceDType, type ReduceOp } from '@shardweave/dtypes';
import type { ProcessGroup } from '../group/process-group.js';
import { type ConformanceCase, check, checkBytes, onRanks, sleep } from './harness.js';
import { Expectations, expectedReduction, patternBytes, patternElements } from './patterns.js';

const ALL_SIZES = [1, 2, 3, 4, 8] as const;
const MIB = 2 ** 20;
const COUNTS = [0, 1, 7, 1023] as const;
const DTYPES: readonly ReduceDType[] = ['f32', 'f16', 'bf16', 'i32', 'u32', 'u8'];
const OPS: readonly ReduceOp[] = ['sum', 'mean', 'max', 'min'];

export const dataCases: readonly ConformanceCase[] = [
  {
    name: 'allGather, broadcast and gather deliver every byte',
    worldSizes: ALL_SIZES,
    run: (harness, worldSize) => {
      const expected = new Expectations();
      return onRanks(harness, worldSize, async (group) => {
        for (const byteLength of [...COUNTS, MIB]) {
          await checkMoves(group, byteLength, expected);
        }
      });
    },
  },
  {
    name: 'reductions combine in rank order and round once',
    worldSizes: ALL_SIZES,
    run: (harness, worldSize) => {
      const expected = new Expectations();
      return onRanks(harness, worldSize, async (group) => {
        for (const dtype of DTYPES) {
          for (const op of OPS) {
            for (const count of COUNTS) {
              await checkReductions(group, { count, dtype, op }, expected);
            }
          }
          // These sizes are too large to be sent whole.
          await checkReductions(group, { count: 20_011, dtype, op: 'mean' }, expected);
        }
      });
    },
  },
  {
    name: 'reductions of 1 MiB',
    worldSizes: [2, 3],
    run: (harness, worldSize) => {
      const expected = new Expectations();
      return onRanks(harness, worldSize, async (group) => {
        for (const dtype of DTYPES) {
          const count = MIB / byteSize(dtype);
          await checkReductions(group, { count, dtype, op: 'sum' }, expected);
        }
      });
    },
  },
  {
    name: 'a buffer above 128 MiB',
    worldSizes: [2],
    run: (harness, worldSize) =>
      onRanks(harness, worldSize, async (group) => {
        // The values are integers as f32, whose sums are exact, so the result is known without
        // another buffer.
        const values = new Float32Array((129 * MIB) / 4 + 1);
        const buffer = new Uint8Array(values.buffer);
        fillRamp(values, group.rank + 1);
        await group.allReduce(buffer, buffer, { dtype: 'f32', op: 'sum' });
        checkRamp(values, 3, 'allReduce');
        if (group.rank === 0) {
          fillRamp(values, 5);
        }
        await group.broadcast(buffer, { root: 0 });
        checkRamp(values, 5, 'broadcast');
      }),
  },
  {
    name: 'inputs may lie in outputs',
    worldSizes: [1, 2, 3],
    run: (harness, worldSize) =>
      onRanks(harness, worldSize, async (group) => {
        const { rank } = group;
        const parts = allRanks(group).map((r) => patternElements(r, 12_000, 'f32'));
        const full = new Uint8Array(48_000 * worldSize);
        const place = full.subarray(rank * 48_000, (rank + 1) * 48_000);
        place.set(parts[rank]!);
        await group.allGather(place, full);
        parts.forEach((part, r) => {
          checkBytes(full.subarray(r * 48_000, (r + 1) * 48_000), part, `part ${r}`);
        });
        const placed = new Uint8Array(full.byteLength);
        let isOwnMissing = false;
        const placeOwn = () => {
          isOwnMissing = true;
        };
        await group.allGather(place, placed, { placeOwn });
        if (isOwnMissing) {
          placed.set(place, rank * 48_000);
        }
        checkBytes(placed, full, 'the part that its caller places');
        for (const length of [48_000, 4]) {
          const inputs = parts.map((part) => part.subarray(0, length));
          const buffer = inputs[rank]!.slice();
          await group.allReduce(buffer, buffer, { dtype: 'f32', op: 'sum' });
          const expected = expectedReduction(inputs, { dtype: 'f32', op: 'sum' });
          checkBytes(buffer, expected, 'allReduce in place');
        }
        await group.reduceScatter(full, place, { dtype: 'f32', op: 'max' });
        checkBytes(place, parts[rank]!, 'reduceScatter in place');
      }),
  },
  {
    name: 'several operations in flight, awaited in any order, from ranks out of step',
    worldSizes: [2, 3, 4, 8],
    run: (harness, worldSize) => {
      const inputs = new Expectations();
      return onRanks(harness, worldSize, async (group) => {
        await sleep(group.rank * 5);
        const lengths = [100_000, 3, 0, 40_000, 600_000, 8];
        const running = lengths.map(async (byteLength, i) => {
          const output = new Uint8Array(byteLength * worldSize);
          await group.allGather(inputs.bytes(group.rank, byteLength), output);
          allRanks(group).forEach((r) => {
            const part = output.subarray(r * byteLength, (r + 1) * byteLength);
            checkBytes(part, inputs.bytes(r, byteLength), `gather ${i} of rank ${r}`);
          });
        });
        const reducing = checkReductions(group, { count: 9000, dtype: 'f32', op: 'sum' });
        await group.barrier();
        await Promise.all([...running.reverse(), reducing]);
      });
    },
  },
  {
    name: 'barrier waits for the last rank',
    worldSizes: [2, 4],
    run: (harness, worldSize) =>
      onRanks(harness, worldSize, async (group) => {
        await sleep(group.rank * 20);
        const arrived = Float64Array.of(Date.now());
        await group.barrier();
        const passed = Date.now();
        const all = new Float64Array(worldSize);
        await group.allGather(new Uint8Array(arrived.buffer), new Uint8Array(all.buffer));
        // The clock is that of all ranks, which may be processes; it may be set by a little
        // meanwhile.
        const last = Math.max(...all);
        check(passed >= last - 5, `passed ${last - passed} ms before the last rank came`);
      }),
  },
  {
    name: 'send and recv keep order within a channel, channels are apart',
    worldSizes: [2, 3],
    run: (harness, worldSize) =>
      onRanks(harness, worldSize, async (group) => {
        const to = (group.rank + 1) % worldSize;
        const from = (group.rank + worldSize - 1) % worldSize;
        // All ranks send first, because a send does not need its receiver.
        await group.send(patternBytes(group.rank, 1023, 1), { to, channel: 1 });
        await group.send(patternBytes(group.rank, 300_000, 2), { to });
        await group.send(patternBytes(group.rank, 300_000, 3), { to });
        const second = new Uint8Array(300_000);
        const third = new Uint8Array(300_000);
        const other = new Uint8Array(1023);
        await Promise.all([group.recv(second, { from }), group.recv(third, { from })]);
        await group.recv(other, { from, channel: 1 });
        checkBytes(second, patternBytes(from, 300_000, 2), 'first of channel 0');
        checkBytes(third, patternBytes(from, 300_000, 3), 'second of channel 0');
        checkBytes(other, patternBytes(from, 1023, 1), 'channel 1');
      }),
  },
  {
    name: 'messages of a channel begin in the order of send, whatever their sizes',
    worldSizes: [2, 3],
    run: (harness, worldSize) =>
      onRanks(harness, worldSize, async (group) => {
        const to = (group.rank + 1) % worldSize;
        const from = (group.rank + worldSize - 1) % worldSize;
        // A small message that overtook the large one before it would meet its `recv`.
        const lengths = [300_000, 8, 0, 70_000, 3];
        const sent = lengths.map((length, i) =>
          group.send(patternBytes(group.rank, length, i), { to }),
        );
        const outputs = lengths.map((length) => new Uint8Array(length));
        await Promise.all([...sent, ...outputs.map((output) => group.recv(output, { from }))]);
        outputs.forEach((output, i) => {
          checkBytes(output, patternBytes(from, lengths[i]!, i), `message ${i}`);
        });
      }),
  },
  {
    name: 'buffers of shared memory can be sent and filled',
    worldSizes: [2],
    run: (harness, worldSize) =>
      onRanks(harness, worldSize, async (group) => {
        if (typeof SharedArrayBuffer !== 'function') {
          return; // a page without cross-origin isolation has none
        }
        const input = new Uint8Array(new SharedArrayBuffer(600_000));
        input.set(patternBytes(group.rank, 600_000));
        const output = new Uint8Array(new SharedArrayBuffer(1_200_000));
        await group.allGather(input, output);
        allRanks(group).forEach((r) => {
          const part = output.subarray(r * 600_000, (r + 1) * 600_000);
          checkBytes(part, patternBytes(r, 600_000), `part ${r}`);
        });
      }),
  },
  {
    name: 'a world of 128 ranks',
    worldSizes: [128],
    run: (harness, worldSize) => {
      const expected = new Expectations();
      return onRanks(harness, worldSize, async (group) => {
        await checkMoves(group, 7, expected);
        await checkReductions(group, { count: 7, dtype: 'bf16', op: 'mean' }, expected);
        const sum = { dtype: 'f32', op: 'sum' } as const;
        const output = new Uint8Array(4500 * 4);
        await group.allReduce(expected.elements(group.rank, 4500, 'f32'), output, sum);
        checkBytes(output, await expected.reduction(worldSize, 4500, sum), 'allReduce');
        await group.barrier();
      });
    },
  },
];

/** Checks allGather of each rank's pattern, and broadcast and gather with the last rank as root. */
export async function checkMoves(
  group: ProcessGroup,
  byteLength: number,
  expected = new Expectations(),
): Promise<void> {
  const { rank, worldSize } = group;
  const root = worldSize - 1;
  const own = expected.bytes(rank, byteLength);
  const gathered = new Uint8Array(byteLength * worldSize);
  await group.allGather(own, gathered);
  const atRoot = rank === root ? new Uint8Array(byteLength * worldSize) : null;
  await group.gather(own, atRoot, { root });
  for (const r of allRanks(group)) {
    const part = expected.bytes(r, byteLength);
    const place = [r * byteLength, (r + 1) * byteLength] as const;
    checkBytes(gathered.subarray(...place), part, `allGather of ${byteLength}, part ${r}`);
    if (atRoot !== null) {
      checkBytes(atRoot.subarray(...place), part, `gather of ${byteLength}, part ${r}`);
    }
  }
  const buffer = rank === root ? own.slice() : new Uint8Array(byteLength);
  await group.broadcast(buffer, { root });
  checkBytes(buffer, expected.bytes(root, byteLength), `broadcast of ${byteLength}`);
}

export interface ReductionCheck {
  readonly count: number;
  readonly dtype: ReduceDType;
  readonly op: ReduceOp;
}

/** Checks reduceScatter and allReduce of each rank's pattern against the plain specification. */
export async function checkReductions(
  group: ProcessGroup,
  { count, dtype, op }: ReductionCheck,
  expectations = new Expectations(),
): Promise<void> {
  const { rank, worldSize } = group;
  const byteLength = count * byteSize(dtype);
  const what = `${op} of ${count} ${dtype} over ${worldSize}`;
  const input = expectations.elements(rank, count, dtype);
  const expected = await expectations.reduction(worldSize, count, { dtype, op });
  const reduced = new Uint8Array(byteLength);
  await group.allReduce(input, reduced, { dtype, op });
  checkBytes(reduced, expected, `allReduce ${what}`);
  // Every part has the same input, so each part of the result is the whole expectation.
  const repeated = new Uint8Array(byteLength * worldSize);
  for (const r of allRanks(group)) {
    repeated.set(input, r * byteLength);
  }
  const part = new Uint8Array(byteLength);
  await group.reduceScatter(repeated, part, { dtype, op });
  checkBytes(part, expected, `reduceScatter ${what}`);
}

const RAMP = 1000;

/** Fills with 0, 1 ... 999 times `factor`, again and again. */
function fillRamp(values: Float32Array, factor: number): void {
  for (let i = 0; i < RAMP; i++) {
    values[i] = i * factor;
  }
  for (let filled = RAMP; filled < values.length; filled *= 2) {
    values.copyWithin(filled, 0, filled);
  }
}

function checkRamp(values: Float32Array, factor: number, what: string): void {
  for (let i = 0; i < values.length; i++) {
    const expected = i < RAMP ? i * factor : values[i - RAMP];
    if (values[i] !== expected) {
      throw new Error(`${what}: element ${i}: expected ${expected}, got ${values[i]}`);
    }
  }
}

export function allRanks(group: ProcessGroup): number[] {
  return Array.from({ length: group.worldSize }, (_, r) => r);
}
