// The rendezvous as one rank sees it, whether hosted in its own process or reached over a socket.

import type { WireSocket } from '../../../sockets/wire-socket.js';
import { parseRendezvousMessage } from './parse-rendezvous-message.js';
import type { Rendezvous } from './rendezvous.js';
import type { PeerAddress, RankMessage, RendezvousMessage } from './rendezvous-messages.js';

export class RendezvousClient {
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
  static inProcess(rendezvous: Rendezvous, rank: number): RendezvousClient {
    const client = new RendezvousClient();
    rendezvous.join(rank, { send: (message) => client.#onMessage(message) });
    client.#say = (message) => {
      if (message.type === 'here') {
        rendezvous.onHere(rank, message.address);
      } else if (message.type === 'linked') {
        rendezvous.onLinked(rank);
      } else {
        rendezvous.onFailed(rank, message.reason);
      }
    };
    return client;
  }

  /** The rendezvous as a rank sees it over an authenticated socket of role 'rendezvous'. */
  static overSocket(socket: WireSocket, worldSize: number): RendezvousClient {
    const client = new RendezvousClient();
    client.#say = (message) => socket.sendText(JSON.stringify(message));
    socket.setHandler({
      onBinary: () => client.#onFailed(new Error('the rendezvous sent bytes')),
      onText: (text) => {
        try {
          client.#onMessage(parseRendezvousMessage(text, worldSize));
        } catch (error) {
          client.#onFailed(new Error(`the rendezvous: ${(error as Error).message}`));
        }
      },
      onClose: (code, reason) =>
        client.#onFailed(new Error(`the rendezvous is gone (${reason || `code ${code}`})`)),
    });
    return client;
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
