// The rendezvous as one rank sees it, whether hosted in its own process or reached over a socket.

import type { WireSocket } from '../../../sockets/wire-socket.js';
import { parseRendezvousMessage } from './parse-rendezvous-message.js';
import type { Rendezvous } from './rendezvous.js';
import type { PeerAddress, RankMessage, RendezvousMessage } from './rendezvous-messages.js';

export class Meeting {
  /** Resolves when all ranks have come. */
  readonly table: Promise<readonly PeerAddress[]>;
  /**
   * Resolves when all ranks are linked. Both this and `table` reject where the job does not form.
   */
  readonly formed: Promise<void>;
  #say: (message: RankMessage) => void = () => {};
  #onTable: (addresses: readonly PeerAddress[]) => void = () => {};
  #onFormed: () => void = () => {};
  #onFailed: (error: Error) => void = () => {};

  private constructor() {
    const failed = new Promise<never>((_, reject) => {
      this.#onFailed = reject;
    });
    this.table = Promise.race([
      failed,
      new Promise<readonly PeerAddress[]>((resolve) => {
        this.#onTable = resolve;
      }),
    ]);
    this.formed = Promise.race([
      failed,
      new Promise<void>((resolve) => {
        this.#onFormed = resolve;
      }),
    ]);
    for (const promise of [this.table, this.formed]) {
      promise.catch(() => {}); // not both are awaited at every moment
    }
  }

  /** The rendezvous as the rank that hosts it sees it. */
  static hosted(rendezvous: Rendezvous, rank: number): Meeting {
    const meeting = new Meeting();
    rendezvous.join(rank, { send: (message) => meeting.#onMessage(message) });
    meeting.#say = (message) => {
      if (message.type === 'here') {
        rendezvous.onHere(rank, message.address);
      } else if (message.type === 'linked') {
        rendezvous.onLinked(rank);
      } else {
        rendezvous.onFailed(rank, message.reason);
      }
    };
    return meeting;
  }

  /** The rendezvous as a rank sees it over an authenticated socket of role 'rendezvous'. */
  static visited(socket: WireSocket, worldSize: number): Meeting {
    const meeting = new Meeting();
    meeting.#say = (message) => socket.sendText(JSON.stringify(message));
    socket.setHandler({
      onBinary: () => meeting.#onFailed(new Error('the rendezvous sent bytes')),
      onText: (text) => {
        try {
          meeting.#onMessage(parseRendezvousMessage(text, worldSize));
        } catch (error) {
          meeting.#onFailed(new Error(`the rendezvous: ${(error as Error).message}`));
        }
      },
      onClose: (code, reason) =>
        meeting.#onFailed(new Error(`the rendezvous is gone (${reason || `code ${code}`})`)),
    });
    return meeting;
  }

  say(message: RankMessage): void {
    this.#say(message);
  }

  #onMessage(message: RendezvousMessage): void {
    if (message.type === 'table') {
      this.#onTable(message.addresses);
    } else if (message.type === 'formed') {
      this.#onFormed();
    } else {
      this.#onFailed(new Error(message.reason));
    }
  }
}
