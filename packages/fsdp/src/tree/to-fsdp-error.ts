// Turns a mismatch of collective calls into an error in the words of this package, for ranks that
// did different things.

import {
  type CollectiveError,
  PeerFailedError,
  type ProcessGroup,
  toldFailure,
} from '@shardweave/collectives';
import { withoutStop } from '@shardweave/dtypes/messages';
import { FsdpRanksDifferError } from '../errors.js';
import { calledIn } from '../ranks/call-identity.js';
import type { ShardedUnit } from '../unit/sharded-unit.js';
import { namesIn } from './used-parameters.js';

interface RankCall {
  readonly rank: number;
  readonly call: string;
}

interface Place {
  /** What this rank was doing: forward, backward, or a call by its name. */
  readonly operation: string;
  readonly group: ProcessGroup;
  /** The tree's units, which know the names of parameters and what failed on this rank. */
  readonly units: readonly ShardedUnit[];
}

/** Matches what usedText and factorsText put after a reduction's names. */
const USED = / \| ([0-9a-f.]*) by ([^']+)'/;

/** More names than these make a message hard to read. */
const MAX_LISTED = 16;

/**
 * The error in this package's words where ranks did different things or another rank failed; any
 * other error as it is.
 */
export function toFsdpError(error: unknown, at: Place): unknown {
  const place = `rank ${at.group.rank}/${at.group.worldSize} ${at.operation}`;
  const told = toldFailure(error);
  if (told !== undefined) {
    if (told.rank === (error as CollectiveError).rank) {
      const own = at.units.find((unit) => unit.failure !== undefined)?.failure;
      return own === undefined ? error : own.error;
    }
    return new PeerFailedError(
      `${place}: expected all ranks to go on, but rank ${told.rank} failed in ${told.operation}: ${withoutStop(told.reason)}. Its own error has more; the process groups have ended.`,
      told,
      { cause: error },
    );
  }
  const calls = callsOf(error);
  if (calls === undefined) {
    return error;
  }
  if (calls.some(({ call }) => calledIn(call) !== undefined)) {
    return new FsdpRanksDifferError(
      `${place}: expected all ranks to make the same calls in one order, but ${calledBy(calls)}. Make each call on every rank, or on none; the process groups have ended.`,
      { parameters: [], cause: error },
    );
  }
  return usedDifferently(error, calls, { ...at, place });
}

/**
 * Tells who called what: `rank 0 alone called stateDict, rank 1 was at allGather f32 512 bytes
 * 'root' #7`.
 */
function calledBy(calls: readonly RankCall[]): string {
  const ranksOf = new Map<string, number[]>();
  for (const { rank, call } of calls) {
    const name = calledIn(call);
    if (name !== undefined) {
      ranksOf.set(name, [...(ranksOf.get(name) ?? []), rank]);
    }
  }
  const called = [...ranksOf].map(([name, ranks]) =>
    ranks.length === 1
      ? `rank ${ranks[0]} alone called ${name}`
      : `ranks ${ranks.join(', ')} called ${name}`,
  );
  const others = calls.filter(({ call }) => calledIn(call) === undefined);
  const were = others.map(({ rank, call }) => `rank ${rank} was at ${call.replace(USED, "'")}`);
  return [...called, ...were].join(', ');
}

function usedDifferently(
  error: unknown,
  calls: readonly RankCall[],
  at: Place & { readonly place: string },
): FsdpRanksDifferError {
  // A token table in parts excludes the option.
  const hint = (text: string) => (at.units.some(({ isTable }) => isTable) ? '' : text);
  const place = `${at.place}: expected all ranks to use the same parameters in a step`;
  const used = calls.map(({ rank, call }) => ({ rank, text: USED.exec(call)?.[1] }));
  const factors = calls.flatMap(({ rank, call }) => {
    const text = USED.exec(call)?.[2];
    return text === undefined ? [] : [{ rank, text }];
  });
  const other = factors.find(({ text }) => text !== factors[0]!.text);
  if (other !== undefined) {
    const [first] = factors;
    return new FsdpRanksDifferError(
      `${at.place}: expected all ranks to divide gradients by the same factors, got ${first!.text} on rank ${first!.rank} and ${other.text} on rank ${other.rank}. Call setGradientDivideFactors alike on all ranks; the process groups have ended.`,
      { parameters: [], cause: error },
    );
  }
  const texts = new Set(used.map(({ text }) => text));
  if (texts.size > 1 && !texts.has(undefined)) {
    const byRank = used.map(({ rank, text }) => ({ rank, names: namesIn(text!, at.units) }));
    const parameters = [...new Set(byRank.flatMap(({ names }) => names))].filter((name) =>
      byRank.some(({ names }) => !names.includes(name)),
    );
    const listed = parameters.slice(0, MAX_LISTED).map((name) => {
      const on = byRank.filter(({ names }) => names.includes(name)).map((entry) => entry.rank);
      return `'${name}' on rank ${on.join(', ')} alone`;
    });
    const rest = parameters.length - listed.length;
    const more = rest > 0 ? `, and ${rest} more` : '';
    return new FsdpRanksDifferError(
      `${place}, got gradients for ${listed.join(', ')}${more}. Use them on all ranks${hint(', or set findUnusedParameters: true, which counts unused ones as zeros')}.`,
      { parameters, cause: error },
    );
  }
  const did = calls.map(({ rank, call }) => `rank ${rank} at ${call.replace(USED, "'")}`);
  return new FsdpRanksDifferError(
    `${place}, in the same order, got ${did.join(', ')}. Modules that a rank skips in forward cannot be made up for${hint('; findUnusedParameters: true allows parameters that only backward does not reach')}.`,
    { parameters: [], cause: error },
  );
}

/** The calls that a mismatch of collectives names; undefined for any other error. */
function callsOf(error: unknown): readonly RankCall[] | undefined {
  if (!(error instanceof Error) || !('code' in error) || error.code !== 'MISMATCH') {
    return undefined;
  }
  const { calls } = error as Error & { readonly calls?: readonly RankCall[] };
  return calls?.some(({ call }) => call.includes("'")) ? calls : undefined;
}
