// Collects what each rank called. When ranks disagree, each one tells all others what it called.
// When all have told, or after a moment, the job fails with the whole list. So every rank's error
// names every rank's call.

import type { Clock } from '../clock.js';
import { MAX_TOLD_LENGTH, type PeerCall } from '../failure.js';

/**
 * The milliseconds for which answers are awaited; a rank that answers later is missing from the
 * list.
 */
export const INQUIRY_MS = 300;

/** The characters of all ranks' calls together. */
const MAX_CALLS = 32 * 1024;

export interface MismatchInquiryOptions {
  readonly group: string;
  readonly sequence: number;
  /** The world ranks of the group. */
  readonly members: readonly number[];
  readonly clock: Clock;
  onDone(calls: readonly PeerCall[]): void;
}

export class MismatchInquiry {
  readonly #options: MismatchInquiryOptions;
  readonly #calls = new Map<number, string>();
  readonly #vague = new Map<number, string>();
  readonly #stopTimer: () => void;
  /** The longest text of a call, so that those of all ranks fit into one message. */
  readonly #maxLength: number;
  #isDone = false;

  constructor(options: MismatchInquiryOptions) {
    this.#options = options;
    this.#maxLength = Math.min(MAX_TOLD_LENGTH, Math.floor(MAX_CALLS / options.members.length));
    this.#stopTimer = options.clock.setTimer(INQUIRY_MS, () => this.#finish());
  }

  isAbout(group: string, sequence: number): boolean {
    return this.#options.group === group && this.#options.sequence === sequence;
  }

  hasHeard(rank: number): boolean {
    return this.#calls.has(rank);
  }

  /**
   * Notes what ranks called, and ends the inquiry when all have told. `isVague` marks calls that
   * were read off headers, which have only a hash of the counts; they count until the ranks
   * themselves tell.
   */
  add(calls: readonly PeerCall[], isVague = false): void {
    for (const { rank, call: text } of calls) {
      const call = text.slice(0, this.#maxLength);
      if (!isVague) {
        this.#calls.set(rank, call);
      } else if (!this.#calls.has(rank)) {
        this.#vague.set(rank, call);
      }
    }
    if (this.#options.members.every((member) => this.#calls.has(member))) {
      this.#finish();
    }
  }

  stop(): void {
    this.#isDone = true;
    this.#stopTimer();
  }

  #finish(): void {
    if (this.#isDone) {
      return;
    }
    this.stop();
    const calls = [...new Map([...this.#vague, ...this.#calls])].map(([rank, call]) => ({
      rank,
      call,
    }));
    this.#options.onDone(calls.sort((a, b) => a.rank - b.rank));
  }
}
