// Bytes that a receiver reads where they lie: in the sender's memory, or in scratch memory of this
// rank.

import type { ScratchPool } from './scratch-pool.js';

/** The bytes of a message, which may be read until `release`. */
export interface Borrowed {
  readonly bytes: Uint8Array;
  /**
   * Ends the reading. Returns false where the sender took its memory back before: what was read may
   * then be anything.
   */
  release(): boolean;
}

/** What a message of 0 bytes has. */
export const NO_BYTES: Borrowed = { bytes: new Uint8Array(0), release: () => true };

/**
 * Stands for what will never come in a job that has failed elsewhere, until this rank hears of it.
 */
const NEVER = new Promise<void>(() => {});

/**
 * Ends the reading of several messages. Where a sender took its memory back before, that rank has
 * failed, and nobody may see what was made of its bytes: the returned promise then stays pending
 * until the failure ends the call. Otherwise nothing is returned.
 */
export function giveBack(borrowed: readonly Borrowed[]): Promise<void> | undefined {
  const wereWhole = borrowed.map((message) => message.release());
  return wereWhole.includes(false) ? NEVER : undefined;
}

/** A message, or its beginning, in scratch memory, which is given back once. */
export class HeldBytes implements Borrowed {
  readonly bytes: Uint8Array;
  #scratch: ScratchPool | undefined;

  constructor(scratch: ScratchPool, byteLength: number) {
    this.bytes = scratch.take(byteLength);
    this.#scratch = scratch;
  }

  release(): boolean {
    this.#scratch?.give(this.bytes);
    this.#scratch = undefined;
    return true;
  }
}
