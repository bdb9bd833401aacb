// Conformance: whatever goes wrong on one rank rejects everything pending and later on all ranks,
// in bounded time, naming the origin.

import { type Clock, systemClock } from '../clock.js';
import type { CollectiveError, CollectiveMismatchError } from '../errors.js';
import type { ProcessGroup } from '../group/process-group.js';
import { tellFailure } from '../group/tell-failure.js';
import {
  type ConformanceCase,
  check,
  onRanks,
  rejection,
  STOP_CASE,
  sleep,
  type TestRank,
  type TransportHarness,
} from './harness.js';

const SUM = { dtype: 'f32', op: 'sum' } as const;
const bytes = (length: number) => new Uint8Array(length);

/** For each disagreement, what rank 1 calls and what the others call. */
const DISAGREEMENTS: readonly (readonly [
  string,
  (group: ProcessGroup) => Promise<unknown>,
  (group: ProcessGroup) => Promise<unknown>,
])[] = [
  [
    'operations',
    (group) => group.barrier(),
    (group) => group.allReduce(bytes(1024), bytes(1024), SUM),
  ],
  [
    'sizes',
    (group) => group.allGather(bytes(64), bytes(64 * group.worldSize)),
    (group) => group.allGather(bytes(600_000), bytes(600_000 * group.worldSize)),
  ],
  [
    'dtypes',
    (group) => group.allReduce(bytes(8), bytes(8), { dtype: 'bf16', op: 'sum' }),
    (group) => group.allReduce(bytes(8), bytes(8), SUM),
  ],
  [
    'reductions',
    (group) => group.allReduce(bytes(80_000), bytes(80_000), { dtype: 'f32', op: 'mean' }),
    (group) => group.allReduce(bytes(80_000), bytes(80_000), SUM),
  ],
  ['counts', (group) => gatherCounted(group, 1, 2), (group) => gatherCounted(group, 2, 1)],
  ['identities', (group) => gatherNamed(group, 'h.1'), (group) => gatherNamed(group, 'h.0')],
  [
    'roots',
    (group) => group.gather(bytes(4), bytes(4 * group.worldSize), { root: 1 }),
    (group) =>
      group.gather(bytes(4), group.rank === 0 ? bytes(4 * group.worldSize) : null, { root: 0 }),
  ],
  [
    'directions',
    (group) => group.broadcast(bytes(4), { root: 0 }),
    (group) =>
      group.gather(bytes(4), group.rank === 0 ? bytes(4 * group.worldSize) : null, { root: 0 }),
  ],
];

/**
 * Gathers with `first` elements of rank 0, `second` of rank 1, and none of the others. The sum is
 * the same.
 */
function gatherCounted(group: ProcessGroup, first: number, second: number): Promise<void> {
  const counts = Array.from({ length: group.worldSize }, (_, r) => [first, second][r] ?? 0);
  const input = bytes(4 * counts[group.rank]!);
  return group.allGather(input, bytes(12), { dtype: 'f32', counts });
}

/** Makes calls that differ only in their identity. */
async function gatherNamed(group: ProcessGroup, identity: string): Promise<void> {
  const gathered = group.allGather(bytes(4), bytes(4 * group.worldSize), { identity });
  const error = await rejection(gathered, 'MISMATCH');
  const isNamed = ["'h.0' #1", "'h.1' #1"].every((call) => error.message.includes(call));
  check(isNamed, error.message);
  throw error;
}

/** The limit of calls that end long before it. */
const LATE_MS = 20_000;

/** A clock on which answers are awaited so long that every rank's comes, on the slowest machine. */
const PATIENT_CLOCK: Clock = {
  ...systemClock,
  setTimer: (ms, callback) => systemClock.setTimer(20 * ms, callback),
};

export const faultCases: readonly ConformanceCase[] = [
  ...DISAGREEMENTS.map(
    ([what, odd, usual]): ConformanceCase => ({
      name: `ranks that disagree about ${what} all learn what each one called`,
      worldSizes: [2, 4],
      run: async (harness, worldSize) => {
        const body = async (group: ProcessGroup) => {
          await group.barrier();
          const call = group.rank === 1 ? odd : usual;
          // A leaf of a rooted operation may be done before the root notices; then the next call
          // tells.
          const ended = call(group).then(() => group.barrier());
          const error = (await rejection(ended, 'MISMATCH')) as CollectiveMismatchError;
          check(error.calls.length === worldSize, `${error.calls.length} calls: ${error.message}`);
          const texts = new Set(error.calls.map((peer) => peer.call));
          check(texts.size === 2, `two different calls: ${error.message}`);
          check(
            error.calls.every((peer) => peer.call.endsWith('#1')),
            `numbered: ${error.message}`,
          );
          await rejection(group.barrier(), 'MISMATCH');
        };
        await onRanks(harness, worldSize, body, { clock: PATIENT_CLOCK });
      },
    }),
  ),
  {
    name: 'ranks that tell of failures alike, but for digits, meet and go on',
    worldSizes: [1, 2, 4],
    run: (harness, worldSize) =>
      onRanks(harness, worldSize, async (group) => {
        for (let step = 0; step < 2; step++) {
          await tellFailure(group, 'a step', new Error(`no row ${group.rank}`));
          await group.barrier();
        }
      }),
  },
  {
    name: 'a rank that tells of its failure alone ends the job, with its number and its reason',
    worldSizes: [2, 4],
    run: (harness, worldSize) =>
      onRanks(harness, worldSize, async (group) => {
        if (group.rank === 1) {
          await tellFailure(group, 'a step', new Error("no row 7 in 'x'"));
        }
        const error = await rejection(group.allReduce(bytes(8), bytes(8), SUM), 'ABORTED');
        const text = `a step failed on rank 1/${worldSize}: no row 7 in 'x'`;
        check(error.originRank === 1 && error.message.includes(text), error.message);
      }),
  },
  {
    name: 'a rank that tells of its failure and that nobody meets in time ends the job with its reason',
    worldSizes: [2],
    run: (harness, worldSize) =>
      onRanks(harness, worldSize, async (group) => {
        const told =
          group.rank === 1
            ? group.barrier({ elseAbort: 'no row', timeoutMs: 50 })
            : group.recv(bytes(4), { from: 1 });
        const error = await rejection(told, 'ABORTED');
        check(error.originRank === 1 && error.message.includes('no row'), error.message);
      }),
  },
  {
    name: 'a send and a recv of different sizes reject on both ranks',
    worldSizes: [2],
    run: (harness, worldSize) =>
      onRanks(harness, worldSize, async (group) => {
        if (group.rank === 0) {
          const sent = group.send(bytes(16), { to: 1 });
          await rejection(
            sent.then(() => group.barrier()),
            'MISMATCH',
          );
        } else {
          const error = await rejection(group.recv(bytes(20), { from: 0 }), 'MISMATCH');
          check(/send u8 16 bytes.*recv u8 20 bytes/.test(error.message), error.message);
        }
      }),
  },
  {
    name: 'abort rejects pending and later calls of all groups everywhere',
    worldSizes: [1, 2, 4],
    run: (harness, worldSize) =>
      onRanks(harness, worldSize, async (group) => {
        const second = await group.split(0);
        await group.barrier();
        const pending =
          group.rank === 0 ? [] : [group.barrier(), second.allGather(bytes(1), bytes(worldSize))];
        if (group.rank === 0) {
          await hearAll(group);
          group.abort('loss is NaN');
        } else {
          tell(group, 0);
        }
        for (const call of [...pending, group.barrier(), second.barrier()]) {
          const error = await rejection(call, 'ABORTED');
          check(error.originRank === 0 && /loss is NaN/.test(error.message), error.message);
        }
      }),
  },
  {
    name: 'a killed rank is named on all others, in pending and later calls',
    worldSizes: [2, 3, 8],
    run: async (harness, worldSize) => {
      const victim = worldSize - 1;
      await onRanks(harness, worldSize, async (group, rank) => {
        await group.barrier();
        if (group.rank === victim) {
          await hearAll(group);
          rank.kill();
          return;
        }
        const large = group.allGather(bytes(200_000), bytes(200_000 * worldSize));
        const small = group.allReduce(bytes(4), bytes(4), SUM);
        tell(group, victim);
        for (const call of [large, small]) {
          checkLost(await rejection(call, 'PEER_LOST'), victim);
        }
        checkLost(await rejection(group.barrier(), 'PEER_LOST', 0), victim);
      });
    },
  },
  {
    name: STOP_CASE,
    worldSizes: [2, 3],
    run: async (harness, worldSize) => {
      const victim = worldSize - 1;
      const body = async (group: ProcessGroup, rank: TestRank) => {
        await group.barrier();
        if (group.rank === victim) {
          check(
            rank.stop !== undefined,
            `no rank of ${harness.name} can be stopped: skip this case`,
          );
          await hearAll(group);
          rank.stop();
          return;
        }
        const large = group.allGather(bytes(200_000), bytes(200_000 * worldSize));
        const small = group.allReduce(bytes(4), bytes(4), SUM);
        tell(group, victim);
        for (const call of [large, small]) {
          checkLost(await rejection(call, 'PEER_LOST'), victim);
        }
        checkLost(await rejection(group.barrier(), 'PEER_LOST', 0), victim);
      };
      await onRanks(harness, worldSize, body, { isStoppable: true });
    },
  },
  {
    name: 'a rank that closes does no harm until it is needed',
    worldSizes: [3],
    run: (harness, worldSize) =>
      onRanks(harness, worldSize, async (group) => {
        const pair = await group.split(group.rank === 2 ? 1 : 0);
        await group.allGather(bytes(100_000), bytes(100_000 * worldSize));
        if (group.rank === 2) {
          await group.close();
          await rejection(group.barrier(), 'CLOSED', 0);
          return;
        }
        await sleep(50);
        await pair.barrier();
        // One rank needs the closed one when the other's barrier, too, has ended; the other waits
        // for the news.
        if (pair.rank === 0) {
          await pair.recv(bytes(1), { from: 1 });
          checkLost(await rejection(group.barrier(), 'PEER_LOST'), 2);
        } else {
          await pair.send(bytes(1), { to: 0 });
          checkLost(await rejection(pair.recv(bytes(1), { from: 0 }), 'PEER_LOST'), 2);
        }
      }),
  },
  {
    name: 'a call that takes too long names who has not made it, on all ranks',
    worldSizes: [2, 3, 4],
    run: async (harness, worldSize) => {
      const late = worldSize - 1;
      // In a barrier of four ranks rank 1 gets its message from rank 0, which waits itself.
      const impatient = Math.min(1, worldSize - 2);
      await withRanks(harness, worldSize, async (ranks) => {
        await Promise.all(
          ranks.map(async ({ group }) => {
            await group.barrier();
            if (group.rank === late) {
              // Nothing is sent: rank 0 calls no barrier before it has heard of the failure.
              await rejection(group.recv(bytes(1), { from: 0 }), 'TIMEOUT');
              await rejection(group.barrier(), 'TIMEOUT', 0);
              return;
            }
            const timeoutMs = group.rank === impatient ? 100 : LATE_MS;
            const error = await rejection(group.barrier({ timeoutMs }), 'TIMEOUT');
            check(error.originRank === impatient, `origin ${error.originRank}`);
            const named = new RegExp(`waiting for ranks ${late}( \\(told by rank \\d\\))?$`);
            check(named.test(error.message), error.message);
          }),
        );
      });
    },
  },
  {
    name: 'closing a subgroup leaves the others alone',
    worldSizes: [2],
    run: (harness, worldSize) =>
      onRanks(harness, worldSize, async (group) => {
        const second = await group.split(0);
        await second.close();
        await rejection(second.barrier(), 'CLOSED');
        await group.barrier();
      }),
  },
];

/** The channel on which the ranks of a case send each other words. */
const CHANNEL = 77;

/**
 * Tells a rank that this one is past what came before. Whether the word arrives does not matter.
 */
function tell(group: ProcessGroup, to: number): void {
  group.send(bytes(1), { to, channel: CHANNEL }).catch(() => {});
}

/** Waits until all other ranks have told. */
async function hearAll(group: ProcessGroup): Promise<void> {
  for (let from = 0; from < group.worldSize; from++) {
    if (from !== group.rank) {
      await group.recv(bytes(1), { from, channel: CHANNEL });
    }
  }
}

function checkLost(error: CollectiveError, victim: number): void {
  check(error.originRank === victim, `expected origin ${victim}: ${error.message}`);
  check(error.message.includes(`peer ${victim} lost`), error.message);
}

async function withRanks(
  harness: TransportHarness,
  worldSize: number,
  body: (ranks: readonly TestRank[]) => Promise<void>,
): Promise<void> {
  const ranks = await harness.create(worldSize, { timeoutMs: LATE_MS });
  try {
    await body(ranks);
  } finally {
    await Promise.all(ranks.map(({ group }) => group.close()));
  }
}
