// Checks that ranks made the same calls: it compares what arrives with what was called here, and
// where they differ it leads the inquiry into what each rank called. The result of the inquiry ends
// the job.

import { describeCall, isSameCall } from '../call-signature.js';
import type { PeerCall } from '../failure.js';
import type { ControlMessage, MessageHeader } from '../transport.js';
import type { Call, CallSpec } from './call.js';
import type { Arrived, Matching } from './matching.js';
import { MismatchInquiry } from './mismatch-inquiry.js';
import type { RankJob } from './rank-job.js';

export class MismatchCheck {
  readonly #job: RankJob;
  readonly #matching: Matching;
  #inquiry: MismatchInquiry | undefined;

  constructor(job: RankJob, matching: Matching) {
    this.#job = job;
    this.#matching = matching;
  }

  /**
   * Puts a collective into its mailbox. Returns false where a message of another call has arrived
   * there.
   */
  admit(call: Call): boolean {
    const { group, sequence, signature } = call.spec;
    const mailbox = this.#matching.mailbox(group, sequence);
    mailbox.call = call;
    this.#matching.called(group, sequence);
    const isSame = this.#matching.everyArrived(mailbox, (header) =>
      isSameCall(signature, header.call),
    );
    if (!isSame || this.#inquiry?.isAbout(group, sequence)) {
      this.#inquire(call.spec, call, { arrived: this.#matching.arrivedIn(mailbox) });
    }
    return isSame;
  }

  /** Whether a message belongs to what was called here; true where nothing was called yet. */
  accepts(from: number, header: MessageHeader, call: Call | undefined): boolean {
    if (call === undefined || isSameCall(call.spec.signature, header.call)) {
      return true;
    }
    this.#inquire(call.spec, call, { arrived: [{ rank: from, header }] });
    return false;
  }

  /** Takes another rank's report that ranks disagree, and what they called. */
  onSaid(message: ControlMessage & { readonly type: 'mismatch' }): void {
    const own = this.#matching.callAt(message.group, message.sequence);
    this.#inquire(message, own, { said: message.calls });
  }

  stop(): void {
    this.#inquiry?.stop();
  }

  /** Begins or continues the inquiry. */
  #inquire(
    { group, sequence, members }: Pick<CallSpec, 'group' | 'sequence' | 'members'>,
    own: Call | undefined,
    { said = [], arrived = [] }: { said?: readonly PeerCall[]; arrived?: readonly Arrived[] },
  ): void {
    const job = this.#job;
    const { rank, clock } = job;
    const elseAbort = own?.spec.elseAbort;
    if (elseAbort !== undefined) {
      job.fail({ kind: 'aborted', origin: rank, reason: elseAbort });
      return;
    }
    this.#inquiry ??= new MismatchInquiry({
      group,
      sequence,
      members,
      clock,
      onDone: (calls) =>
        job.fail({ kind: 'mismatch', origin: rank, reason: 'ranks disagree', calls }),
    });
    if (!this.#inquiry.isAbout(group, sequence)) {
      return; // one is enough to end the job
    }
    if (own !== undefined && !this.#inquiry.hasHeard(rank)) {
      const calls = [{ rank, call: own.description }];
      this.#inquiry.add(calls);
      for (const peer of members) {
        // In one process peers answer at once, so the job may be over before all of them were
        // asked.
        if (peer !== rank && job.failure === undefined) {
          job.transport.sendControl(peer, { type: 'mismatch', group, sequence, members, calls });
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

/** Describes what a sender called, as far as its message shows it. */
export function describeHeader(header: MessageHeader): string {
  return describeCall(header.call, header.sequence);
}
