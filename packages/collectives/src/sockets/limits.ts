// What strangers may cost a listener, and what a proven peer may say in one message.

/**
 * Chunks and inline frames of links are smaller; a peer that sends more in one message is cut off.
 */
export const MAX_MESSAGE_BYTES = 2 * 2 ** 20;

/**
 * Bytes that a connection may say before it has proved itself; what proves it has 110, with its
 * frame.
 */
export const STRANGER_BYTES = 1024;

export interface WsLimits {
  /** Connections that have proved nothing, at a time; above it the oldest is dropped. */
  readonly maxStrangers: number;
  /** Connections a second, over a burst of as many; further ones are dropped. */
  readonly maxJoinsPerSecond: number;
  /** Milliseconds from connection to proof: generous on a loaded machine, short for a flood. */
  readonly proofMs: number;
}

/**
 * `worldSize` ranks come at once, each with a visit to the rendezvous, a link and a heartbeat;
 * twice that leaves room for retries and for a few hundred strangers beside them. A stranger costs
 * about 20 KiB (test/ws-fuzz.test.ts prints it), so these are worth some MiB.
 */
export function limitsFor(worldSize: number, limits: Partial<WsLimits> = {}): WsLimits {
  return {
    maxStrangers: limits.maxStrangers ?? 64 + 4 * worldSize,
    maxJoinsPerSecond: limits.maxJoinsPerSecond ?? 256 + 8 * worldSize,
    proofMs: limits.proofMs ?? 5000,
  };
}
