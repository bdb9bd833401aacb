// Ends the job because of a call that waits in vain: one in which nothing has moved for its time
// limit, or one that needs a peer that has left.

import { isPointToPoint } from '../call-signature.js';
import { MAX_TOLD_LENGTH } from '../failure.js';
import { printable } from '../printable.js';
import { LONGEST_TIMER_MS } from '../time-limit.js';
import type { Call } from './call.js';
import type { LateInquiry } from './late-inquiry.js';
import type { RankJob } from './rank-job.js';

export class CallWatchdog {
  readonly lateInquiry: LateInquiry;
  readonly #job: RankJob;
  readonly #running: ReadonlyMap<Call, unknown>;

  /** @param running the calls that are not over */
  constructor(job: RankJob, lateInquiry: LateInquiry, running: ReadonlyMap<Call, unknown>) {
    this.#job = job;
    this.lateInquiry = lateInquiry;
    this.#running = running;
  }

  /**
   * Fails the job when nothing has moved for the call's time limit. The returned function ends the
   * watch.
   */
  watch(call: Call): () => void {
    const { clock } = this.#job;
    const { timeoutMs } = call.spec;
    let cancel = () => {};
    const check = async () => {
      if (timeoutMs <= call.idleMs) {
        await this.#onTimeout(call);
      }
      if (this.#running.has(call)) {
        const leftMs = timeoutMs - call.idleMs;
        cancel = clock.setTimer(Math.min(leftMs, LONGEST_TIMER_MS), check);
      }
    };
    cancel = clock.setTimer(Math.min(timeoutMs, LONGEST_TIMER_MS), check);
    return () => cancel();
  }

  /**
   * Fails the job because a call waits for a peer that has left. A peer may owe nothing to what
   * others called: it has left behind a gather that it knew to be done, while this rank is in an
   * all-gather. So the others are asked what they called there, and disagreement counts first.
   */
  async onMissed(call: Call, peer: number): Promise<void> {
    const { spec, description } = call;
    const { rank } = this.#job;
    const isAsked = !isPointToPoint(spec.signature) && spec.elseAbort === undefined;
    const calls = isAsked ? (await this.lateInquiry.find(spec)).calls : [];
    // Another rank's words have come as people may read them.
    const own = printable(description, MAX_TOLD_LENGTH);
    if (calls.every(({ call: said }) => printable(said, MAX_TOLD_LENGTH) === own)) {
      this.#job.lose(peer, 'it closed the group');
      return;
    }
    const all = [...calls, { rank, call: own }];
    const sorted = all.sort((a, b) => a.rank - b.rank);
    const reason = 'ranks disagree';
    this.#job.fail({ kind: 'mismatch', origin: rank, reason, calls: sorted });
  }

  /**
   * Fails the job, unless the call goes on while it is found out who is late: what came while the
   * event loop was held is read in that time.
   */
  async #onTimeout(call: Call): Promise<void> {
    const { elseAbort, timeoutMs, signature } = call.spec;
    const { rank } = this.#job;
    if (elseAbort !== undefined) {
      this.#job.fail({ kind: 'aborted', origin: rank, reason: elseAbort });
      return;
    }
    const isAsked = !isPointToPoint(signature);
    const late = isAsked ? await (call.late?.() ?? this.#lateIn(call)) : [];
    if (!this.#running.has(call) || call.idleMs < timeoutMs) {
      return;
    }
    const waitingFor = late.length > 0 ? late : call.waitingFor();
    const whom = waitingFor.length === 0 ? 'its own sends' : `ranks ${waitingFor.join(', ')}`;
    const limit = `${timeoutMs} ms without progress`;
    const reason = `${call.description} timed out after ${limit}, waiting for ${whom}`;
    this.#job.fail({ kind: 'timeout', origin: rank, reason, waitingFor });
  }

  async #lateIn({ spec }: Call): Promise<readonly number[]> {
    return (await this.lateInquiry.find(spec)).late;
  }
}
