// Finds out who keeps a call waiting. A rank whose message has not come may itself be waiting in
// the call for another one, so all ranks are asked whether they have made the call. Those that have
// not are late, and so are those that don't answer.

import type { ControlMessage } from '../transport.js';
import type { CallSpec } from './call.js';
import type { Matching } from './matching.js';
import { INQUIRY_MS } from './mismatch-inquiry.js';
import type { RankJob } from './rank-job.js';

interface Asked {
  readonly late: Set<number>;
  readonly unheard: Set<number>;
  finish(): void;
}

export class LateInquiry {
  readonly #job: RankJob;
  readonly #matching: Matching;
  /** What was asked and is not settled, by group and number of the call. */
  readonly #asked = new Map<string, Asked>();

  constructor(job: RankJob, matching: Matching) {
    this.#job = job;
    this.#matching = matching;
  }

  /** Resolves with the world ranks that have not made the call, or don't answer. */
  async find({ group, sequence, members }: CallSpec): Promise<readonly number[]> {
    const { rank, left, clock, transport } = this.#job;
    const peers = members.filter((member) => member !== rank && !left.has(member));
    const late = new Set(peers);
    const key = keyOf(group, sequence);
    let stopTimer = () => {};
    await new Promise<void>((finish) => {
      const asked = { late, unheard: new Set(peers), finish };
      this.#asked.set(key, asked);
      stopTimer = clock.setTimer(INQUIRY_MS, finish);
      for (const peer of peers) {
        transport.sendControl(peer, { type: 'have you called', group, sequence });
      }
      if (peers.length === 0) {
        finish();
      }
    });
    stopTimer();
    this.#asked.delete(key);
    return [...late].sort((a, b) => a - b);
  }

  /** Takes a peer's question, or its answer. */
  onSaid(
    from: number,
    message: ControlMessage & { readonly type: 'have you called' | 'has called' },
  ): void {
    const { group, sequence } = message;
    if (message.type === 'have you called') {
      const hasCalled = this.#matching.hasCalled(group, sequence);
      const answer = { type: 'has called', group, sequence, hasCalled } as const;
      this.#job.transport.sendControl(from, answer);
      return;
    }
    const asked = this.#asked.get(keyOf(group, sequence));
    asked?.unheard.delete(from);
    if (message.hasCalled) {
      asked?.late.delete(from);
    }
    if (asked?.unheard.size === 0) {
      asked.finish();
    }
  }

  stop(): void {
    for (const { finish } of this.#asked.values()) {
      finish();
    }
  }
}

function keyOf(group: string, sequence: number): string {
  return `${sequence} ${group}`;
}
