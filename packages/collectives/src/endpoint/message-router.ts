// What arrives at a rank: each message is checked against what was called here and handed to its
// Arrival, where it meets its receiver.

import type { Failure } from '../failure.js';
import type { MessageHeader, MessageSink } from '../transport.js';
import { Arrival, type ArrivalServices } from './arrival.js';
import type { Call } from './call.js';
import { isPointToPoint } from './call-signature.js';
import type { Matching } from './matching.js';
import { describeHeader, type MismatchCheck } from './mismatch-check.js';

export interface MessageRouterOptions {
  /** World rank. */
  readonly rank: number;
  readonly matching: Matching;
  readonly mismatchCheck: MismatchCheck;
  readonly arrivals: ArrivalServices;
  /** See Transport. */
  readonly isLending: () => boolean;
  readonly hasFailed: () => boolean;
  fail(failure: Failure): void;
}

const DISCARD: MessageSink = { posted: undefined, write: () => {} };

export class MessageRouter {
  readonly #options: MessageRouterOptions;

  constructor(options: MessageRouterOptions) {
    this.#options = options;
  }

  /** See TransportListener. */
  onMessage(from: number, header: MessageHeader): MessageSink {
    const { matching, mismatchCheck, hasFailed } = this.#options;
    if (hasFailed()) {
      return DISCARD;
    }
    if (isPointToPoint(header.call)) {
      return this.#onPointToPoint(from, header);
    }
    const mailbox = matching.mailbox(header.group, header.sequence);
    const arrival = matching.inMailbox(mailbox, from, header.phase);
    if (arrival.header !== undefined) {
      return this.#lose(from, `it sent a message of ${describeHeader(header)} twice`);
    }
    if (!mismatchCheck.accepts(from, header, mailbox.call)) {
      return DISCARD;
    }
    if (arrival.expectedBytes !== undefined && arrival.expectedBytes !== header.byteLength) {
      return this.#lose(from, `it sent ${header.byteLength} bytes in ${describeHeader(header)}`);
    }
    return this.#begin(arrival, from, header);
  }

  /** Where a call meets the message that it asks for. After a failure nothing comes there. */
  arrivalOf(call: Call, from: number, phase: number): Arrival {
    const { matching, arrivals, hasFailed } = this.#options;
    const { group, sequence, signature } = call.spec;
    if (!hasFailed()) {
      if (!isPointToPoint(signature)) {
        return matching.inMailbox(matching.mailbox(group, sequence), from, phase);
      }
      const arrival = matching.nextUnposted(group, from, sequence);
      arrival.receiver = call;
      if (arrival.header === undefined || this.#checkLength(call, from, arrival.header)) {
        return arrival;
      }
    }
    const arrival = new Arrival(arrivals, true);
    arrival.cancel();
    return arrival;
  }

  #onPointToPoint(from: number, header: MessageHeader): MessageSink {
    const { matching } = this.#options;
    const arrival = matching.nextUnsent(header.group, from, header.sequence);
    const call = arrival.receiver;
    if (call !== undefined && !this.#checkLength(call, from, header)) {
      return DISCARD;
    }
    return this.#begin(arrival, from, header);
  }

  #begin(arrival: Arrival, from: number, header: MessageHeader): MessageSink {
    const { matching, isLending } = this.#options;
    const isHeld = !isLending() || isPointToPoint(header.call);
    const wrong = matching.begin(arrival, from, header, isHeld);
    return wrong === undefined ? arrival : this.#lose(from, wrong);
  }

  /** A receiver that names another size or dtype than the sender: both ranks are told. */
  #checkLength(call: Call, from: number, header: MessageHeader): boolean {
    const { rank, fail } = this.#options;
    const { byteLength, dtype } = call.spec.signature;
    const isSame = header.byteLength === byteLength && header.call.dtype === dtype;
    if (!isSame) {
      const calls = [
        { rank: from, call: describeHeader(header) },
        { rank, call: call.description },
      ];
      fail({ kind: 'mismatch', origin: rank, reason: 'send and recv differ', calls });
    }
    return isSame;
  }

  #lose(peer: number, reason: string): MessageSink {
    this.#options.fail({ kind: 'peer-lost', origin: peer, reason });
    return DISCARD;
  }
}
