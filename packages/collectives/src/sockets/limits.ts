// What strangers may cost a listener, and how long an authenticated peer's message may be.

/**
 * The longest message of an authenticated peer; one that sends more in a message is cut off. Chunks
 * and inline frames of links are smaller.
 */
export const MAX_MESSAGE_BYTES = 2 * 2 ** 20;

/**
 * The bytes that a connection may send before it is authenticated. The proof takes 110, with its
 * frame.
 */
export const STRANGER_BYTES = 1024;

/**
 * What strangers, who are not authenticated, may cost a listener. Defaults for n ranks: 64 + 4 n
 * strangers, but at most a quarter of `ulimit -n`, 4,096 + 8 n connections a second, and five
 * seconds for the proof.
 */
export interface WsLimits {
  /**
   * The number of connections at a time that are not authenticated; above it the oldest of the
   * address that has the most of them is dropped.
   */
  readonly maxStrangers: number;
  /**
   * Connections a second, after a burst of as many, and half as many of each address; further ones
   * are dropped.
   */
  readonly maxJoinsPerSecond: number;
  /**
   * The milliseconds from connection to proof: generous on a loaded machine, short for a flood. A
   * rank that authenticates waits as long for each answer.
   */
  readonly proofMs: number;
}

/**
 * The limits for a job: `worldSize` ranks come at once, each with a visit to the rendezvous, a link
 * and a heartbeat. Twice that leaves room for retries and for a few hundred strangers beside them.
 * A stranger costs about 20 KiB (test/ws-fuzz.test.ts prints it), so all of them cost some MiB.
 * They may take a quarter of the files that a process may open: the rest is for ranks, and for
 * saves. To refuse a connection costs as much as to let it in, so a rank beside 2,000 a second from
 * its own address must still find a token.
 */
export function limitsFor(
  worldSize: number,
  limits: Partial<WsLimits> = {},
  maxOpenFiles = Infinity,
): WsLimits {
  return {
    maxStrangers: limits.maxStrangers ?? Math.min(64 + 4 * worldSize, Math.floor(maxOpenFiles / 4)),
    maxJoinsPerSecond: limits.maxJoinsPerSecond ?? 4096 + 8 * worldSize,
    proofMs: limits.proofMs ?? 5000,
  };
}
