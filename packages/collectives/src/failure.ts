// The reason for which a job's groups ended, in a form that travels between ranks. Each rank makes
// its own errors from it (errors.ts), so that all of them name the same origin.

/** The longest text of another rank that people get to read; a longer one is cut. */
export const MAX_TOLD_LENGTH = 1000;

/** What one rank called; `rank` counts in the world. */
export interface PeerCall {
  readonly rank: number;
  readonly call: string;
}

/**
 * The reason for which a job ended, as plain data that travels between ranks. The first one that
 * reaches a rank counts, and each rank makes its own CollectiveError from it.
 */
export type Failure = {
  /**
   * The world rank at which it began. A relay is not a rank, so the origin of 'relay-lost' is the
   * rank that lost it.
   */
  readonly origin: number;
  readonly reason: string;
  /**
   * The world ranks that are dead or cut off, as far as is known. Where it is absent, that is the
   * origin of 'peer-lost', and nobody of another kind.
   */
  readonly lost?: readonly number[];
} /** 'epoch-over': the members of an elastic job change, and it goes on in another epoch. */ & (
  | { readonly kind: 'peer-lost' | 'relay-lost' | 'aborted' | 'closed' | 'epoch-over' }
  | { readonly kind: 'timeout'; readonly waitingFor: readonly number[] }
  | { readonly kind: 'mismatch'; readonly calls: readonly PeerCall[] }
);

/** The world ranks that are dead or cut off, as far as is known. */
export function lostOf({ kind, origin, lost }: Failure): readonly number[] {
  return lost ?? (kind === 'peer-lost' ? [origin] : []);
}
