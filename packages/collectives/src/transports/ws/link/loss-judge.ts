// Tells which of the peers that were lost at about the same time is to blame. Where another rank
// knows the cause, its word comes within the time that the judgement waits.

import type { Clock } from '../../../clock.js';
import type { TransportListener } from '../../../transport.js';
import type { PeerHeartbeats } from './peer-heartbeats.js';

/**
 * The time for which a lost link waits for what is known elsewhere. A rank that aborts and exits at
 * once resets its connections, and its peers' messages may overtake its own: without waiting, 4 of
 * 24 peers heard no reason, and 2 of 48 blamed a rank that had only heard of it.
 */
const LOSS_GRACE_MS = 150;

/**
 * What may be the cause of a loss, the surest first: a peer with a link of its own, a peer whose
 * relay lives, the relay, one of these two, or neither of them, where the peer gave up because of
 * something else.
 */
const SUSPECTS = ['peer', 'relayed peer', 'relay', 'either', 'neither'] as const;

/** A peer that is lost, and what may be the cause. */
export interface Loss {
  readonly peer: number;
  readonly reason: string;
  readonly suspect: (typeof SUSPECTS)[number];
}

export class LossJudge {
  readonly #listener: TransportListener;
  readonly #heartbeats: PeerHeartbeats;
  readonly #losses = new Map<number, Loss>();
  readonly #clock: Clock;
  #stopJudging: (() => void) | undefined;
  #isOver = false;

  constructor(listener: TransportListener, heartbeats: PeerHeartbeats, clock: Clock) {
    this.#clock = clock;
    this.#listener = listener;
    this.#heartbeats = heartbeats;
  }

  /** Takes a loss, which is judged with others after at least `minGraceMs`. */
  add(loss: Loss, minGraceMs: number): void {
    if (!this.#isOver && !this.#losses.has(loss.peer)) {
      this.#losses.set(loss.peer, loss);
      const graceMs = Math.max(LOSS_GRACE_MS, minGraceMs);
      this.#stopJudging ??= this.#clock.setTimer(graceMs, () => this.#judge());
    }
  }

  stop(): void {
    this.#isOver = true;
    this.#stopJudging?.();
  }

  /** Blames one of the lost peers. Where another rank knew the cause, the job has failed by now. */
  #judge(): void {
    const weight = ({ suspect }: Loss) => SUSPECTS.indexOf(suspect);
    const [first, ...others] = [...this.#losses.values()].sort((a, b) => weight(a) - weight(b));
    const also = others
      .map(({ peer, reason }) => `; rank ${peer} is lost, too: ${reason}`)
      .join('');
    const { peer, reason, suspect } = first!;
    const lost = [first!, ...others].filter(
      (loss) => loss.suspect === 'peer' || loss.suspect === 'relayed peer',
    );
    for (const loss of lost) {
      this.#heartbeats.tellLost(loss.peer, loss.reason);
    }
    if (suspect === 'relay') {
      this.#listener.onRelayLost(`${reason}, on the way to rank ${peer}${also}`);
      return;
    }
    const how = suspect === 'either' ? ', by way of the relay, which may be what is gone' : '';
    const ranks = lost.map((loss) => loss.peer);
    this.#listener.onPeerLost(peer, `${reason}${how}${also}`, ranks);
  }
}
