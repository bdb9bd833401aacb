// What can go wrong in a simulated job, drawn at random, and the ranks that errors may blame for
// it.

import type { CollectiveErrorCode } from '../../errors.js';
import type { SeededRandom } from './seeded-random.js';
import { MAX_SILENCE_MS, MIN_SILENCE_MS } from './simulated-network.js';

/**
 * What goes wrong `delayMs` after `rank` has come to step number `step` of its program:
 * - kill: the process dies.
 * - stop: the process stands still for `ms`, heartbeats included.
 * - busy: the process computes for `ms`, which is not a fault.
 * - cut: nothing passes between `rank` and `peer`.
 * - partition: nothing passes between the ranks of `side` and the others.
 * - reset: the connection between `rank` and `peer` breaks.
 * - abort, leave, stick, mismatch: the rank's program aborts, closes the group early, makes no
 *   further call, or makes another call.
 */
export type Fault = {
  readonly rank: number;
  readonly step: number;
  readonly delayMs: number;
} & (
  | { readonly kind: 'kill' | 'abort' | 'leave' | 'stick' | 'mismatch' }
  | { readonly kind: 'stop' | 'busy'; readonly ms: number }
  | { readonly kind: 'cut'; readonly peer: number; readonly ms: number }
  | { readonly kind: 'reset'; readonly peer: number }
  | { readonly kind: 'partition'; readonly side: readonly number[]; readonly ms: number }
);

/** What can go wrong in a simulated job; `Fault` describes each kind. */
export type FaultKind = Fault['kind'];

/** One error code and the ranks that it may name; null stands for any rank. */
export interface Blame {
  readonly code: CollectiveErrorCode;
  readonly origins: readonly number[] | null;
}

const KINDS: readonly FaultKind[] = [
  'kill',
  'stop',
  'busy',
  'cut',
  'partition',
  'reset',
  'abort',
  'leave',
  'stick',
  'mismatch',
];

/** Draws a fault for a program of `numSteps` steps; for a job of one rank there are fewer kinds. */
export function randomFault(random: SeededRandom, worldSize: number, numSteps: number): Fault {
  const rank = random.below(worldSize);
  const delayMs = random.chance(0.5) ? 0 : random.exponential(5);
  const base = { rank, step: random.below(numSteps), delayMs };
  const kind = worldSize === 1 ? random.pick(['abort', 'busy'] as const) : random.pick(KINDS);
  const other = () => (rank + 1 + random.below(worldSize - 1)) % worldSize;
  switch (kind) {
    case 'stop':
      return { ...base, kind, ms: randomSilence(random) };
    case 'busy':
      return { ...base, kind, ms: random.between(0, 5 * MAX_SILENCE_MS) };
    case 'cut':
      return { ...base, kind, peer: other(), ms: randomSilence(random) };
    case 'reset':
      return { ...base, kind, peer: other() };
    case 'partition': {
      const first = random.below(worldSize - 1);
      const side = Array.from({ length: worldSize }, (_, r) => r).filter(
        (r) => r === first || (r !== worldSize - 1 && random.chance(0.5)),
      );
      return { ...base, kind, side, ms: randomSilence(random) };
    }
    default:
      return { ...base, kind };
  }
}

/** Draws a silence that is endless, too short to be noticed, or close to the limit. */
function randomSilence(random: SeededRandom): number {
  return random.pick([
    Infinity,
    Infinity,
    random.between(0, MIN_SILENCE_MS * 0.99),
    random.between(MIN_SILENCE_MS, 3 * MAX_SILENCE_MS),
  ]);
}

/** Whether no rank may notice the fault. */
export function isHarmless(fault: Fault): boolean {
  return fault.kind === 'busy' || ('ms' in fault && fault.ms < MIN_SILENCE_MS);
}

/** What errors may say on ranks other than a leaving one. */
export function blameOf(fault: Fault): Blame | undefined {
  const { rank } = fault;
  if (isHarmless(fault)) {
    return undefined;
  }
  switch (fault.kind) {
    case 'kill':
    case 'leave':
      return { code: 'PEER_LOST', origins: [rank] };
    case 'stop':
      // A rank that comes back late finds its peers gone, and can't know why.
      return { code: 'PEER_LOST', origins: fault.ms === Infinity ? [rank] : null };
    case 'cut':
    case 'reset':
      // Each end loses the other as its peer.
      return { code: 'PEER_LOST', origins: [rank, fault.peer] };
    case 'partition':
      return { code: 'PEER_LOST', origins: null };
    case 'abort':
      return { code: 'ABORTED', origins: [rank] };
    case 'stick':
      // The rank whose time is over first times out, which may be one that waits for another
      // waiting rank.
      return { code: 'TIMEOUT', origins: null };
    case 'mismatch':
      return { code: 'MISMATCH', origins: null };
    case 'busy':
      return undefined;
  }
}

/**
 * The milliseconds from a fault until the first rank must know of it; undefined where that depends
 * on when the faulty rank is needed.
 */
export function noticedWithinMs(fault: Fault): number | undefined {
  switch (fault.kind) {
    case 'kill':
    case 'reset':
    case 'abort':
      return 0;
    case 'stop':
    case 'cut':
    case 'partition':
      return fault.ms > MAX_SILENCE_MS ? MAX_SILENCE_MS : undefined;
    default:
      return undefined;
  }
}

/**
 * Describes a fault for error messages: `partition of 0, 2 for 4210 ms, 3 ms after rank 1 came to
 * step 4`.
 */
export function describeFault(fault: Fault): string {
  const words: (string | number)[] = [fault.kind];
  if (fault.kind === 'partition') {
    words.push(`of ${fault.side.join(', ')}`);
  } else {
    words.push('of rank', fault.rank);
  }
  if ('peer' in fault) {
    words.push('with', fault.peer);
  }
  if ('ms' in fault) {
    words.push(`for ${Math.round(fault.ms)} ms`);
  }
  const delay = fault.delayMs === 0 ? 'as' : `${fault.delayMs.toFixed(2)} ms after`;
  return `${words.join(' ')}, ${delay} rank ${fault.rank} came to step ${fault.step}`;
}
