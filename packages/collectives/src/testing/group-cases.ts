// Conformance: subgroups, counters, traces, arguments.

import type { CollectiveTrace, ProcessGroup } from '../group/process-group.js';
import { checkMoves, checkReductions } from './data-cases.js';
import { type ConformanceCase, check, checkBytes, onRanks, rejection } from './harness.js';
import { withDelay } from './with-delay.js';

export const groupCases: readonly ConformanceCase[] = [
  {
    name: 'split makes groups by color, ordered by key',
    worldSizes: [1, 3, 4, 8],
    run: (harness, worldSize) =>
      onRanks(harness, worldSize, async (group) => {
        // Colors by parity, with reversed keys: the highest rank of a color becomes its rank 0.
        const half = await group.split(group.rank % 2, -group.rank);
        const members = Array.from({ length: worldSize }, (_, r) => r)
          .filter((r) => r % 2 === group.rank % 2)
          .reverse();
        check(half.worldSize === members.length, `size ${half.worldSize}`);
        check(members[half.rank] === group.rank, `rank ${half.rank}`);
        await checkMoves(half, 1023);
        await checkReductions(half, { count: 7, dtype: 'f32', op: 'sum' });
        const nested = await half.split(0);
        await Promise.all([checkMoves(nested, 9), checkMoves(group, 11)]);
      }),
  },
  {
    name: 'a split with one color is a second, independent sequence',
    worldSizes: [2, 4],
    run: (harness, worldSize) =>
      onRanks(harness, worldSize, async (group) => {
        const second = await group.split(0);
        check(second.rank === group.rank, `rank ${second.rank}`);
        // Ranks start the two sequences in different order; each sequence has its own numbers.
        const first = () => checkMoves(group, 5000);
        const other = () => checkReductions(second, { count: 5000, dtype: 'f32', op: 'mean' });
        await Promise.all(group.rank % 2 === 0 ? [first(), other()] : [other(), first()]);
      }),
  },
  {
    name: 'two groups of the same ranks keep apart, though their ids are as long',
    worldSizes: [2, 3],
    run: (harness, worldSize) =>
      onRanks(harness, worldSize, async (group) => {
        const [one, other] = [await group.split(0), await group.split(0)];
        check(one.id !== other.id && one.id.length === other.id.length, `${one.id} ${other.id}`);
        // Each group's calls are in one order; how the two groups' calls mingle differs from rank
        // to rank.
        for (const byteLength of [7, 7, 40_000, 40_000]) {
          await Promise.all([one, other].map((group) => checkMoves(group, byteLength)));
        }
      }),
  },
  {
    name: 'a group can be split eighty times over',
    worldSizes: [2],
    run: (harness, worldSize) =>
      onRanks(harness, worldSize, async (world) => {
        let group = world;
        const ids = new Set<string>();
        for (let depth = 0; depth < 80; depth++) {
          group = await group.split(0);
          ids.add(group.id);
        }
        check(ids.size === 80, `${ids.size} ids`);
        await Promise.all([checkMoves(group, 100), checkMoves(world, 100)]);
      }),
  },
  {
    name: 'stats count calls and payload bytes exactly',
    worldSizes: [1, 2, 3, 4],
    run: (harness, worldSize) =>
      onRanks(harness, worldSize, async (group) => {
        const n = worldSize * 60_000;
        const bytes = (length: number) => new Uint8Array(length);
        await group.allGather(bytes(n), bytes(n * worldSize));
        await group.reduceScatter(bytes(n * worldSize), bytes(n), { dtype: 'f32', op: 'sum' });
        checkTraffic(group, 2 * (worldSize - 1) * n, 2 * (worldSize - 1) * n);
        const before = group.stats();
        await group.allReduce(bytes(n), bytes(n), { dtype: 'f32', op: 'sum' });
        await group.allReduce(bytes(8), bytes(8), { dtype: 'f32', op: 'sum' });
        await group.barrier();
        await group.split(0);
        // In a group of 4 ranks and more, small buffers go by way of rank 0.
        const small = worldSize < 4 || group.rank === 0 ? (worldSize - 1) * 8 : 8;
        const reduced = (worldSize - 1) * 2 * (n / worldSize) + small;
        checkTraffic(group, before.bytesSent + reduced, before.bytesReceived + reduced);
        await group.broadcast(bytes(100), { root: 0 });
        await group.gather(bytes(100), group.rank === 0 ? bytes(100 * worldSize) : null, {
          root: 0,
        });
        const after = group.stats();
        const isRoot = group.rank === 0;
        const rooted = isRoot ? (worldSize - 1) * 100 : 100;
        checkTraffic(
          group,
          before.bytesSent + reduced + rooted,
          before.bytesReceived + reduced + rooted,
        );
        check(after.allGathers === 1 && after.reduceScatters === 1, 'allGathers, reduceScatters');
        check(after.allReduces === 2 && after.barriers === 1, 'allReduces, barriers');
        check(after.broadcasts === 1 && after.gathers === 1, 'broadcasts, gathers');
      }),
  },
  {
    name: 'onTrace reports each call of a group and of its subgroups',
    worldSizes: [2],
    run: (harness, worldSize) =>
      onRanks(harness, worldSize, async (group) => {
        const traces: CollectiveTrace[] = [];
        group.onTrace = (trace) => traces.push(trace);
        await group.allGather(new Uint8Array(10), new Uint8Array(10 * worldSize), { tag: 'unit' });
        const second = await group.split(0);
        await second.barrier();
        const seen = traces.map(({ name, seq, bytes, tag, group: id }) =>
          [name, seq, bytes, tag, id === group.id].join(' '),
        );
        check(
          seen.join() === 'allGather 0 10 unit true,split 1 16  true,barrier 0 0  false',
          seen.join(),
        );
        check(
          traces.every((trace) => trace.endMs >= trace.startMs && trace.rank === group.rank),
          'times and rank',
        );
      }),
  },
  {
    name: 'a delayed group waits without holding others up',
    worldSizes: [2],
    run: (harness, worldSize) =>
      onRanks(harness, worldSize, async (group) => {
        const slow = withDelay(group, 60);
        const traces: CollectiveTrace[] = [];
        slow.onTrace = (trace) => traces.push(trace);
        const start = performance.now();
        await Promise.all([slow.barrier(), slow.barrier(), checkMoves(slow, 100)]);
        const elapsed = performance.now() - start;
        // checkMoves makes three calls one after another, and the barriers wait at the same time.
        // Timers may fire a millisecond early.
        check(elapsed >= 177, `three calls of 60 ms took ${elapsed} ms`);
        check(
          traces.every((trace) => trace.endMs - trace.startMs >= 60),
          'traces show the delay',
        );
      }),
  },
  {
    name: 'wrong arguments reject before anything is sent',
    worldSizes: [2],
    run: (harness, worldSize) =>
      onRanks(harness, worldSize, async (group) => {
        const bytes = (length: number) => new Uint8Array(length);
        const sum = { dtype: 'f32', op: 'sum' } as const;
        await rejection(group.allGather(bytes(4), bytes(7)), 'USAGE');
        await rejection(group.reduceScatter(bytes(4), bytes(4), sum), 'USAGE');
        await rejection(group.allReduce(bytes(6), bytes(6), sum), 'USAGE');
        const counts = [1, 2, 3];
        await rejection(group.allGather(bytes(1), bytes(6), { counts }), 'USAGE');
        await rejection(group.allGather(bytes(4), bytes(12), { counts: [1, 2] }), 'USAGE');
        const whole = bytes(8);
        await rejection(group.reduceScatter(whole, whole.subarray(2, 6), sum), 'USAGE');
        await rejection(group.allReduce(whole.subarray(0, 4), whole.subarray(2, 6), sum), 'USAGE');
        await rejection(group.broadcast(bytes(4), { root: 2 }), 'USAGE');
        await rejection(group.send(bytes(4), { to: group.rank }), 'USAGE');
        await rejection(group.split(0.5), 'USAGE');
        const output = bytes(2);
        await group.allGather(Uint8Array.of(group.rank + 5), output);
        checkBytes(output, Uint8Array.of(5, 6), 'a good call afterwards');
      }),
  },
];

function checkTraffic(group: ProcessGroup, sent: number, received: number): void {
  const { bytesSent, bytesReceived } = group.stats();
  check(bytesSent === sent, `expected ${sent} bytes sent, got ${bytesSent}`);
  check(bytesReceived === received, `expected ${received} bytes received, got ${bytesReceived}`);
}
