// Finds out who keeps a call waiting. A rank whose message has not come may itself be waiting in
// the call for another one, so all ranks are asked whether they have made the call, and as what.
// Those that have not are late, and so are those that don't answer.

import type { PeerCall } from '../failure.js';
import type { ControlMessage } from '../transport.js';
import type { CallSpec } from './call.js';
import type { Matching } from './matching.js';
import { INQUIRY_MS } from './mismatch-inquiry.js';
import type { RankJob } from './rank-job.js';

/** What became known of a call. */
export interface Found {
  /** The world ranks that have not made the call, or don't answer, ascending. */
  readonly late: readonly number[];
  /** What the others have called, as far as they remember it. */
  readonly calls: readonly PeerCall[];
}

interface Asked {
  readonly late: Set<number>;
  readonly calls: Map<number, string>;
  readonly unheard: Set<number>;
  readonly found: Promise<Found>;
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

  /** Asks all ranks of the group that have not left. */
  find(spec: CallSpec): Promise<Found> {
    const key = keyOf(spec.group, spec.sequence);
    const { found } = this.#asked.get(key) ?? this.#ask(spec, key);
    return found;
  }

  #ask({ group, sequence, members }: CallSpec, key: string): Asked {
    const { rank, left, clock, transport } = this.#job;
    const peers = members.filter((member) => member !== rank && !left.has(member));
    const late = new Set(peers);
    const calls = new Map<number, string>();
    let finish = () => {};
    const found = new Promise<Found>((resolve) => {
      finish = () => {
        stopTimer();
        this.#asked.delete(key);
        resolve({
          late: [...late].sort((a, b) => a - b),
          calls: [...calls].map(([peer, call]) => ({ rank: peer, call })),
        });
      };
    });
    const stopTimer = clock.setTimer(peers.length === 0 ? 0 : INQUIRY_MS, finish);
    const asked = { late, calls, unheard: new Set(peers), found, finish };
    this.#asked.set(key, asked);
    for (const peer of peers) {
      transport.sendControl(peer, { type: 'have you called', group, sequence });
    }
    return asked;
  }

  /** Takes a peer's question, or its answer. */
  onSaid(
    from: number,
    message: ControlMessage & { readonly type: 'have you called' | 'has called' },
  ): void {
    const { group, sequence } = message;
    if (message.type === 'have you called') {
      const hasCalled = this.#matching.hasCalled(group, sequence);
      const call = this.#matching.callAt(group, sequence)?.description;
      const answer = { type: 'has called', group, sequence, hasCalled, call } as const;
      this.#job.transport.sendControl(from, answer);
      return;
    }
    const asked = this.#asked.get(keyOf(group, sequence));
    asked?.unheard.delete(from);
    if (message.hasCalled) {
      asked?.late.delete(from);
    }
    if (message.call !== undefined) {
      asked?.calls.set(from, message.call);
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
