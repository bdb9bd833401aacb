// Collects what each rank called. When ranks disagree, each one tells all others what it called.
// When all have told, or after a moment, the job fails with the whole list. So every rank's error
// names every rank's call.

import type { Clock } from '../clock.js';
import type { PeerCall } from '../failure.js';

/**
 * The milliseconds for which answers are awaited; a rank that answers later is missing from the
 * list.
 */
const INQUIRY_MS = 300;

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
  #isDone = false;

  constructor(options: MismatchInquiryOptions) {
    this.#options = options;
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
    for (const { rank, call } of calls) {
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
