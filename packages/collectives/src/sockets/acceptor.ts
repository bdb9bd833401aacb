// The listening side of a process: it accepts peers that authenticate themselves and refuses
// the rest, with a reason for the log and no harm to the job. Node only.

import type { IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import { WebSocketServer } from 'ws';
import { authenticateJoiner, REFUSED_CODE } from './authenticate.js';
import { MAX_MESSAGE_BYTES } from './limits.js';
import { hostOf, Listener, type ListenerPolicy, type TurnedAway } from './listener.js';
import { NodeSocket } from './node-socket.js';
import type { ListenOptions, SocketListener } from './socket-platform.js';
import type { UpgradeRequest } from './upgrade.js';

export interface AcceptorOptions extends ListenOptions {
  readonly secret: string;
  readonly policy: ListenerPolicy;
  /** Called with each peer that was turned away, and why. */
  readonly onRefused?: ((turnedAway: TurnedAway) => void) | undefined;
}

export class Acceptor implements SocketListener {
  readonly #options: AcceptorOptions;
  readonly #upgrades: WebSocketServer;
  #listener: Listener | undefined;

  private constructor(options: AcceptorOptions) {
    this.#options = options;
    this.#upgrades = new WebSocketServer({
      noServer: true,
      perMessageDeflate: false,
      autoPong: false, // see NodeSocket
      maxPayload: MAX_MESSAGE_BYTES,
      clientTracking: false,
    });
  }

  /** Resolves when it listens. Rejects with ListenError. */
  static async listen(options: AcceptorOptions): Promise<Acceptor> {
    const acceptor = new Acceptor(options);
    acceptor.#listener = await Listener.open(options, options.policy, {
      onUpgrade: (request, socket, name) => acceptor.#onUpgrade(request, socket, name),
      onRefused: (refusal) => options.onRefused?.(refusal),
    });
    return acceptor;
  }

  get port(): number {
    return this.#listener!.port;
  }

  close(): void {
    this.#listener!.close();
  }

  #onUpgrade({ key, origin }: UpgradeRequest, connection: Socket, name: string): void {
    // What the listener has checked, in the form in which the library takes it.
    const headers = {
      upgrade: 'websocket',
      'sec-websocket-version': '13',
      'sec-websocket-key': key,
    };
    const request = { method: 'GET', url: '/', headers } as IncomingMessage;
    this.#upgrades.handleUpgrade(request, connection, Buffer.alloc(0), (socket) => {
      const isPage = origin !== undefined;
      void this.#authenticate(new NodeSocket(socket, { connection, isPage }), connection, name);
    });
  }

  async #authenticate(stranger: NodeSocket, connection: Socket, name: string): Promise<void> {
    const { secret, refusalOf, onPeer, policy } = this.#options;
    const { proofMs } = policy.limits;
    const host = hostOf(connection);
    try {
      const hello = await authenticateJoiner(stranger, { secret, proofMs, refusalOf });
      this.#listener!.trust(name);
      stranger.trust(MAX_MESSAGE_BYTES);
      onPeer(hello, stranger, host);
    } catch (error) {
      this.#listener!.refuse(name, (error as Error).message);
      stranger.close(REFUSED_CODE, (error as Error).message);
    }
  }
}
