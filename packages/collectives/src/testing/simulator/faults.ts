// What can go wrong in a simulated job, drawn at random, and whom errors may blame for it.

import type { CollectiveErrorCode } from '../../errors.js';
import type { SeededRandom } from './seeded-random.js';
import { MAX_SILENCE_MS, MIN_SILENCE_MS } from './simulated-network.js';

/** Happens `delayMs` after `rank` has come to step number `step` of its program. */
interface FaultBase {
  readonly rank: number;
  readonly step: number;
  readonly delayMs: number;
}

/**
 * kill: the process dies. stop: it stands still, heartbeats too, for `ms`. busy: it computes for
 * `ms`, which is no fault. cut: nothing passes between `rank` and `peer`; partition: nor between
 * `side` and the others. reset: that connection breaks. abort, leave (it closes the group early),
 * stick (it calls nothing more) and mismatch (it calls something else) are its program's doing.
 */
export type Fault =
  | (FaultBase & { readonly kind: 'kill' | 'abort' | 'leave' | 'stick' | 'mismatch' })
  | (FaultBase & { readonly kind: 'stop' | 'busy'; readonly ms: number })
  | (FaultBase & { readonly kind: 'cut'; readonly peer: number; readonly ms: number })
  | (FaultBase & { readonly kind: 'reset'; readonly peer: number })
  | (FaultBase & {
      readonly kind: 'partition';
      readonly side: readonly number[];
      readonly ms: number;
    });

export type FaultKind = Fault['kind'];

/** One code and the ranks that it may name; null: any. */
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

/** Draws a fault for a program of `numSteps` steps; a job of one rank has fewer to draw from. */
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

/** For ever, or too short to be noticed, or about the limit. */
function randomSilence(random: SeededRandom): number {
  return random.pick([
    Infinity,
    Infinity,
    random.between(0, MIN_SILENCE_MS * 0.99),
    random.between(MIN_SILENCE_MS, 3 * MAX_SILENCE_MS),
  ]);
}

/** Whether nobody may notice. */
export function isHarmless(fault: Fault): boolean {
  return fault.kind === 'busy' || ('ms' in fault && fault.ms < MIN_SILENCE_MS);
}

/** What errors on other ranks than a leaving one may say. */
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
      // One that comes back late finds its peers gone, and can't know why.
      return { code: 'PEER_LOST', origins: fault.ms === Infinity ? [rank] : null };
    case 'cut':
    case 'reset':
      // Either end is the other's lost peer.
      return { code: 'PEER_LOST', origins: [rank, fault.peer] };
    case 'partition':
      return { code: 'PEER_LOST', origins: null };
    case 'abort':
      return { code: 'ABORTED', origins: [rank] };
    case 'stick':
      // Whoever's time is over first, which may be a rank that waits for one that waits.
      return { code: 'TIMEOUT', origins: null };
    case 'mismatch':
      return { code: 'MISMATCH', origins: null };
    case 'busy':
      return undefined;
  }
}

/**
 * Milliseconds from a fault until the first rank must know of it; undefined where that depends on
 * when it is needed.
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

/** For error messages: `partition of 0, 2 for 4210 ms, 3 ms after rank 1 came to step 4`. */
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
