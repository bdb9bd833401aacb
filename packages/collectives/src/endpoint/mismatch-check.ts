// Whether ranks called the same thing: compares what arrives with what was called, and where they
// differ, leads the inquiry into what each rank called. What that finds ends the job.

import type { Clock } from '../clock.js';
import type { Failure, PeerCall } from '../failure.js';
import type { ControlMessage, MessageHeader } from '../transport.js';
import type { Call } from './call.js';
import { describeCall, isSameCall } from './call-signature.js';
import type { Arrived, Matching } from './matching.js';
import { MismatchInquiry } from './mismatch-inquiry.js';

export interface MismatchCheckOptions {
  /** World rank. */
  readonly rank: number;
  readonly matching: Matching;
  readonly clock: Clock;
  readonly hasFailed: () => boolean;
  sendControl(to: number, message: ControlMessage): void;
  fail(failure: Failure): void;
}

/** A call's place. */
interface Place {
  readonly group: string;
  readonly sequence: number;
  readonly members: readonly number[];
}

export class MismatchCheck {
  readonly #options: MismatchCheckOptions;
  #inquiry: MismatchInquiry | undefined;

  constructor(options: MismatchCheckOptions) {
    this.#options = options;
  }

  /** Puts a collective into its mailbox; false where what has arrived already is of another call. */
  admit(call: Call): boolean {
    const { group, sequence, signature } = call.spec;
    const { matching } = this.#options;
    const mailbox = matching.mailbox(group, sequence);
    mailbox.call = call;
    const isSame = matching.everyArrived(mailbox, (header) => isSameCall(signature, header.call));
    if (!isSame || this.#inquiry?.isAbout(group, sequence)) {
      this.#inquire(call.spec, call, { arrived: matching.arrivedIn(mailbox) });
    }
    return isSame;
  }

  /** Whether a message belongs to what was called here, if anything was yet. */
  accepts(from: number, header: MessageHeader, call: Call | undefined): boolean {
    if (call === undefined || isSameCall(call.spec.signature, header.call)) {
      return true;
    }
    this.#inquire(call.spec, call, { arrived: [{ rank: from, header }] });
    return false;
  }

  /** Other ranks disagree, and say what they called. */
  onSaid(message: ControlMessage & { readonly type: 'mismatch' }): void {
    const own = this.#options.matching.callAt(message.group, message.sequence);
    this.#inquire(message, own, { said: message.calls });
  }

  stop(): void {
    this.#inquiry?.stop();
  }

  /** Begins or continues the inquiry. */
  #inquire(
    { group, sequence, members }: Place,
    own: Call | undefined,
    { said = [], arrived = [] }: { said?: readonly PeerCall[]; arrived?: readonly Arrived[] },
  ): void {
    const { rank, clock, hasFailed, sendControl, fail } = this.#options;
    const elseAbort = own?.spec.elseAbort;
    if (elseAbort !== undefined) {
      fail({ kind: 'aborted', origin: rank, reason: elseAbort });
      return;
    }
    this.#inquiry ??= new MismatchInquiry({
      group,
      sequence,
      members,
      clock,
      onDone: (calls) => fail({ kind: 'mismatch', origin: rank, reason: 'ranks disagree', calls }),
    });
    if (!this.#inquiry.isAbout(group, sequence)) {
      return; // one is enough to end the job
    }
    if (own !== undefined && !this.#inquiry.hasHeard(rank)) {
      const calls = [{ rank, call: own.description }];
      this.#inquiry.add(calls);
      for (const peer of members) {
        // In one process peers answer at once, and the job may be over before all were asked.
        if (peer !== rank && !hasFailed()) {
          sendControl(peer, { type: 'mismatch', group, sequence, members, calls });
        }
      }
    }
    this.#inquiry.add(said);
    for (const { rank: from, header } of arrived) {
      const isVague = header.call.layout !== 0;
      this.#inquiry.add([{ rank: from, call: describeHeader(header) }], isVague);
    }
  }
}

/** What a sender called, by its message. */
export function describeHeader(header: MessageHeader): string {
  return describeCall(header.call, header.sequence);
}
