// The place where messages and calls of one rank meet: collectives by group, sequence number,
// sender and phase; send and recv by group, sender and channel, in order. It only finds what
// belongs together. MessageRouter and MismatchCheck judge it.

import type { MessageHeader } from '../transport.js';
import { Arrival, type ArrivalServices } from './arrival.js';
import type { Call, CallSpec } from './call.js';
import { Fifo } from './fifo.js';

/** The messages of one collective, by sender and phase. */
export interface Mailbox {
  call: Call | undefined;
  readonly arrivals: Map<number, Arrival>;
}

/** The header of a message that has come for a collective, and its sender's world rank. */
export interface Arrived {
  readonly rank: number;
  readonly header: MessageHeader;
}

/**
 * The number of finished calls that are remembered, for ranks that disagree later: a leaf of a
 * broadcast is done before the root knows. No program has as many in flight.
 */
const NUM_REMEMBERED = 64;

/** MessageHeader.phase is below this. */
const MAX_PHASES = 2 ** 16;

/**
 * The number of one peer's messages that may wait until this rank asks for them: a rank may be that
 * many small calls behind. No program makes more.
 */
const MAX_UNCLAIMED_MESSAGES = 65_536;

/** What one peer has sent that nobody on this rank has asked for. */
interface Unclaimed {
  messages: number;
  bytes: number;
}

export class Matching {
  readonly #services: ArrivalServices;
  readonly #maxUnclaimedBytes: number;
  readonly #unclaimed = new Map<number, Unclaimed>();
  /** The number of the last call of each group. */
  readonly #lastCalls = new Map<string, number>();
  readonly #mailboxes = new Map<string, Map<number, Mailbox>>();
  /**
   * The arrivals of send and recv of which one of the two sides has come, in order. In one channel
   * all of them wait for the same side, or else the first would have met it.
   */
  readonly #channels = new Map<string, Fifo<Arrival>>();

  /**
   * @param maxUnclaimedBytes the most bytes of one peer that may wait until this rank asks for them
   */
  constructor(services: ArrivalServices, maxUnclaimedBytes: number) {
    this.#services = services;
    this.#maxUnclaimedBytes = maxUnclaimedBytes;
  }

  /**
   * Begins a message. Returns what its sender has done wrong where it has sent too much that nobody
   * asked for. `isHeld` tells that the payload waits here, and not at its sender.
   */
  begin(
    arrival: Arrival,
    from: number,
    header: MessageHeader,
    isHeld: boolean,
  ): string | undefined {
    if (arrival.expectedBytes !== undefined) {
      arrival.begin(header);
      return undefined;
    }
    let unclaimed = this.#unclaimed.get(from);
    if (unclaimed === undefined) {
      unclaimed = { messages: 0, bytes: 0 };
      this.#unclaimed.set(from, unclaimed);
    }
    const byteLength = isHeld ? header.byteLength : 0;
    const of = unclaimed;
    of.messages++;
    of.bytes += byteLength;
    arrival.begin(header, () => {
      of.messages--;
      of.bytes -= byteLength;
    });
    if (of.messages > MAX_UNCLAIMED_MESSAGES) {
      return `it sent more than ${MAX_UNCLAIMED_MESSAGES} messages that no call here has asked for`;
    }
    if (of.bytes > this.#maxUnclaimedBytes) {
      return `it sent ${of.bytes} bytes that no call here has asked for, at most ${this.#maxUnclaimedBytes} are held: call recv before the peer sends so much, or raise maxUnclaimedBytes`;
    }
    return undefined;
  }

  mailbox(group: string, sequence: number): Mailbox {
    let bySequence = this.#mailboxes.get(group);
    if (bySequence === undefined) {
      bySequence = new Map();
      this.#mailboxes.set(group, bySequence);
    }
    let mailbox = bySequence.get(sequence);
    if (mailbox === undefined) {
      mailbox = { call: undefined, arrivals: new Map() };
      bySequence.set(sequence, mailbox);
    }
    return mailbox;
  }

  /** Notes that this rank has made the call; those of a group come in order. */
  called(group: string, sequence: number): void {
    this.#lastCalls.set(group, sequence);
  }

  /** Whether this rank has made the call, or a later one of its group. */
  hasCalled(group: string, sequence: number): boolean {
    return sequence <= (this.#lastCalls.get(group) ?? -1);
  }

  callAt(group: string, sequence: number): Call | undefined {
    return this.#mailboxes.get(group)?.get(sequence)?.call;
  }

  /**
   * The arrival for a sender and phase, whether the message or the call that asks for it comes
   * first.
   */
  inMailbox(mailbox: Mailbox, from: number, phase: number): Arrival {
    const key = from * MAX_PHASES + phase;
    let arrival = mailbox.arrivals.get(key);
    if (arrival === undefined) {
      arrival = new Arrival(this.#services, false);
      mailbox.arrivals.set(key, arrival);
    }
    return arrival;
  }

  /** The messages of a mailbox that have begun. */
  arrivedIn(mailbox: Mailbox): Arrived[] {
    return [...mailbox.arrivals].flatMap(([key, { header }]) =>
      header === undefined ? [] : [{ rank: Math.floor(key / MAX_PHASES), header }],
    );
  }

  /** Whether `passes` is true for every message that has begun. */
  everyArrived(mailbox: Mailbox, passes: (header: MessageHeader) => boolean): boolean {
    for (const { header } of mailbox.arrivals.values()) {
      if (header !== undefined && !passes(header)) {
        return false;
      }
    }
    return true;
  }

  /**
   * The arrival for a new recv: the oldest message that nobody has asked for, or a place for the
   * next one.
   */
  nextUnposted(group: string, from: number, channel: number): Arrival {
    return this.#next(group, from, channel, (arrival) => arrival.expectedBytes === undefined);
  }

  /**
   * The arrival for a new message: the oldest recv without one, or a place where the next recv
   * finds it.
   */
  nextUnsent(group: string, from: number, channel: number): Arrival {
    return this.#next(group, from, channel, (arrival) => arrival.header === undefined);
  }

  /** Forgets the messages of a call that is over. What was called stays known for a while. */
  finish({ group, sequence }: CallSpec): void {
    const bySequence = this.#mailboxes.get(group);
    bySequence?.get(sequence)?.arrivals.clear();
    bySequence?.delete(sequence - NUM_REMEMBERED);
  }

  /** Drops everything, so that transports that wait for a receiver may stop waiting. */
  clear(): void {
    for (const bySequence of this.#mailboxes.values()) {
      for (const { arrivals } of bySequence.values()) {
        for (const arrival of arrivals.values()) {
          arrival.cancel();
        }
      }
    }
    this.#mailboxes.clear();
    this.#channels.clear();
  }

  /**
   * The first arrival of a channel that fits, or a new one, which then waits in the channel for its
   * other side.
   */
  #next(
    group: string,
    from: number,
    channel: number,
    isWanted: (arrival: Arrival) => boolean,
  ): Arrival {
    const key = `${group}/${from}/${channel}`;
    const waiting = this.#channels.get(key) ?? new Fifo();
    const first = waiting.first;
    if (first !== undefined && isWanted(first)) {
      waiting.shift();
      if (waiting.first === undefined) {
        this.#channels.delete(key);
      }
      return first;
    }
    const arrival = new Arrival(this.#services, true);
    waiting.push(arrival);
    this.#channels.set(key, waiting);
    return arrival;
  }
}
