// The rendezvous meets all ranks and hands out the table of addresses. It is not a rank and knows
// nothing of sockets: by default rank 0 hosts one in its process, and `serveRendezvous` hosts one
// alone, for jobs of pages.
//
// Note [two rounds]
// Ranks link when all have come, and begin when all are linked. Whatever goes wrong on one rank
// before that reaches all others through the rendezvous, so no rank waits for a job that won't
// form.

import type { Clock } from '../../../clock.js';
import { setLimit } from '../../../time-limit.js';
import type { PeerAddress, RendezvousMessage } from './rendezvous-messages.js';

export interface RendezvousOptions {
  readonly worldSize: number;
  /** The milliseconds in which all ranks have to come and to link. */
  readonly joinTimeoutMs: number;
  /**
   * Describes what helps to find a missing rank: where the rendezvous listened, and who was
   * refused.
   */
  readonly circumstances?: (() => string) | undefined;
  /** Default: the system's. */
  readonly clock?: Clock;
}

/** The way in which the rendezvous speaks to one rank. */
export interface Member {
  send(message: RendezvousMessage): void;
  /** Asks over its connection whether it is still there. Absent where it is this process. */
  answers?(): Promise<boolean>;
  /** Ends its connection. */
  dismiss?(reason: string): void;
}

/**
 * The milliseconds for a process that its launcher starts anew, where a rank has left while
 * joining. After that the others are told, which may be minutes before the time to join is over.
 * Restarts of a container begin after ten seconds.
 */
const REPLACEMENT_MS = 30_000;

/** What the rendezvous knows of a rank. */
interface MemberState {
  readonly member: Member;
  address: PeerAddress | undefined;
  isLinked: boolean;
}

export class Rendezvous {
  /** Resolves when the job has formed; rejects with the reason where it does not. */
  readonly formed: Promise<void>;
  readonly #options: RendezvousOptions;
  readonly #members = new Map<number, MemberState>();
  readonly #stopTimer: () => void;
  #hasTable = false;
  #isOver = false;
  #onFormed: () => void = () => {};
  #onFailed: (error: Error) => void = () => {};

  constructor(options: RendezvousOptions) {
    this.#options = options;
    this.formed = new Promise((resolve, reject) => {
      this.#onFormed = resolve;
      this.#onFailed = reject;
    });
    this.formed.catch(() => {}); // members are told, and the process that hosts it may not ask
    this.#stopTimer = setLimit(options.joinTimeoutMs, () => this.#onLate(), options.clock);
  }

  /** The reason why this rank can't come in; undefined where it can. */
  refusalOf(rank: number): string | undefined {
    if (rank >= this.#options.worldSize) {
      return `there is no rank ${rank} of ${this.#options.worldSize}`;
    }
    if (this.#isOver || this.#hasTable) {
      return 'the job has met already';
    }
    const { member } = this.#members.get(rank) ?? {};
    return member !== undefined && member.answers === undefined
      ? `rank ${rank} is here already`
      : undefined;
  }

  /**
   * Gives `rank`'s place to a process that claims to be it. A process that has the place keeps it
   * if it answers. If it doesn't, it was stopped or cut off, and the newcomer is its replacement.
   * Resolves with the reason why the newcomer can't come in, or with undefined.
   */
  async claim(rank: number, newcomer: Member): Promise<string | undefined> {
    const held = this.#members.get(rank)?.member;
    if (held?.answers !== undefined && (await held.answers())) {
      return `rank ${rank} is here already`;
    }
    const refusal = this.refusalOf(rank);
    if (refusal === undefined && this.#members.get(rank)?.member === held) {
      this.#members.delete(rank);
      held?.dismiss?.(`another process has come as rank ${rank}, and this one did not answer`);
    }
    if (refusal === undefined && !this.#members.has(rank)) {
      this.join(rank, newcomer);
      return undefined;
    }
    return refusal ?? `rank ${rank} is here already`;
  }

  join(rank: number, member: Member): void {
    this.#members.set(rank, { member, address: undefined, isLinked: false });
  }

  /** Notes where a rank listens. The last rank to tell completes the table. */
  onHere(rank: number, address: PeerAddress): void {
    const state = this.#members.get(rank);
    if (this.#isOver || state === undefined || state.address !== undefined) {
      return;
    }
    state.address = address;
    const { worldSize } = this.#options;
    const addresses = Array.from({ length: worldSize }, (_, r) => this.#members.get(r)?.address);
    if (addresses.every((known) => known !== undefined)) {
      this.#hasTable = true;
      this.#tellAll({ type: 'table', addresses });
    }
  }

  onLinked(rank: number): void {
    const state = this.#members.get(rank);
    if (this.#isOver || state === undefined || !this.#hasTable) {
      return;
    }
    state.isLinked = true;
    if ([...this.#members.values()].every(({ isLinked }) => isLinked)) {
      this.#end();
      this.#tellAll({ type: 'formed' });
      this.#onFormed();
    }
  }

  /**
   * Notes that the rank's connection ended. As long as the table is not out, its place is free
   * again, so a process that its launcher starts anew can come in.
   */
  onLeft(rank: number, reason: string): void {
    if (this.#hasTable) {
      this.onFailed(rank, `rank ${rank} left before all were linked (${reason})`);
    } else {
      this.#members.delete(rank);
      const onLate = () => {
        if (!this.#members.has(rank)) {
          const limit = `${REPLACEMENT_MS} ms`;
          this.onFailed(rank, `rank ${rank} left (${reason}), and no other came within ${limit}`);
        }
      };
      const stop = setLimit(REPLACEMENT_MS, onLate, this.#options.clock);
      this.formed.then(stop, stop);
    }
  }

  /** Tells all ranks that the job will not form. */
  onFailed(origin: number, reason: string): void {
    if (!this.#isOver) {
      this.#end();
      this.#tellAll({ type: 'failed', origin, reason });
      this.#onFailed(new Error(reason));
    }
  }

  /** Ends the rendezvous, because its host closes it. */
  close(): void {
    this.onFailed(0, 'the rendezvous was closed');
  }

  #onLate(): void {
    const { worldSize, joinTimeoutMs, circumstances } = this.#options;
    const ranks = Array.from({ length: worldSize }, (_, rank) => rank);
    const absent = ranks.filter((rank) => this.#members.get(rank)?.address === undefined);
    const unlinked = ranks.filter((rank) => this.#members.get(rank)?.isLinked !== true);
    const what =
      absent.length > 0
        ? `no sign of ranks ${absent.join(', ')}`
        : `ranks ${unlinked.join(', ')} are not linked to all others`;
    this.onFailed(
      (absent.length > 0 ? absent : unlinked)[0]!,
      `${what} within ${joinTimeoutMs} ms${circumstances === undefined ? '' : ` (${circumstances()})`}`,
    );
  }

  #end(): void {
    this.#isOver = true;
    this.#stopTimer();
  }

  #tellAll(message: RendezvousMessage): void {
    for (const { member } of [...this.#members.values()]) {
      member.send(message);
    }
  }
}
