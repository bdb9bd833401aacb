// Routes what arrives at a rank: each message is compared with what was called here, and handed to
// its Arrival, where it meets its receiver.

import { isPointToPoint } from '../call-signature.js';
import type { MessageHeader, MessageSink } from '../transport.js';
import { Arrival } from './arrival.js';
import type { Call } from './call.js';
import type { Matching } from './matching.js';
import { describeHeader, type MismatchCheck } from './mismatch-check.js';
import type { RankJob } from './rank-job.js';

const DISCARD: MessageSink = { posted: undefined, write: () => {} };

export class MessageRouter {
  readonly #job: RankJob;
  readonly #matching: Matching;
  readonly #mismatchCheck: MismatchCheck;

  constructor(job: RankJob, matching: Matching, mismatchCheck: MismatchCheck) {
    this.#job = job;
    this.#matching = matching;
    this.#mismatchCheck = mismatchCheck;
  }

  /** See TransportListener. */
  onMessage(from: number, header: MessageHeader): MessageSink {
    if (this.#job.failure !== undefined) {
      return DISCARD;
    }
    if (isPointToPoint(header.call)) {
      return this.#onPointToPoint(from, header);
    }
    const mailbox = this.#matching.mailbox(header.group, header.sequence);
    const arrival = this.#matching.inMailbox(mailbox, from, header.phase);
    if (arrival.header !== undefined) {
      return this.#lose(from, `it sent a message of ${describeHeader(header)} twice`);
    }
    if (!this.#mismatchCheck.accepts(from, header, mailbox.call)) {
      return DISCARD;
    }
    if (arrival.expectedBytes !== undefined && arrival.expectedBytes !== header.byteLength) {
      return this.#lose(from, `it sent ${header.byteLength} bytes in ${describeHeader(header)}`);
    }
    return this.#begin(arrival, from, header);
  }

  /**
   * The Arrival where a call meets the message that it asks for. After a failure nothing arrives
   * there.
   */
  arrivalOf(call: Call, from: number, phase: number): Arrival {
    const matching = this.#matching;
    const { group, sequence, signature } = call.spec;
    if (this.#job.failure === undefined) {
      if (!isPointToPoint(signature)) {
        return matching.inMailbox(matching.mailbox(group, sequence), from, phase);
      }
      const arrival = matching.nextUnposted(group, from, sequence);
      arrival.receiver = call;
      if (arrival.header === undefined || this.#checkLength(call, from, arrival.header)) {
        return arrival;
      }
    }
    const arrival = new Arrival(this.#job, true);
    arrival.cancel();
    return arrival;
  }

  #onPointToPoint(from: number, header: MessageHeader): MessageSink {
    const arrival = this.#matching.nextUnsent(header.group, from, header.sequence);
    const call = arrival.receiver;
    if (call !== undefined && !this.#checkLength(call, from, header)) {
      return DISCARD;
    }
    return this.#begin(arrival, from, header);
  }

  #begin(arrival: Arrival, from: number, header: MessageHeader): MessageSink {
    const isHeld = !this.#job.transport.isLending || isPointToPoint(header.call);
    const wrong = this.#matching.begin(arrival, from, header, isHeld);
    return wrong === undefined ? arrival : this.#lose(from, wrong);
  }

  /**
   * Checks a message of `send`. False where its receiver names another size or dtype than its
   * sender, which ends the job.
   */
  #checkLength(call: Call, from: number, header: MessageHeader): boolean {
    const { rank } = this.#job;
    const { byteLength, dtype } = call.spec.signature;
    const isSame = header.byteLength === byteLength && header.call.dtype === dtype;
    if (!isSame) {
      const calls = [
        { rank: from, call: describeHeader(header) },
        { rank, call: call.description },
      ];
      this.#job.fail({ kind: 'mismatch', origin: rank, reason: 'send and recv differ', calls });
    }
    return isSame;
  }

  #lose(peer: number, reason: string): MessageSink {
    this.#job.lose(peer, reason);
    return DISCARD;
  }
}
