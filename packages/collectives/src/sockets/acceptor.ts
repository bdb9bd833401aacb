// The listening side of a process: it accepts peers that prove themselves and refuses the rest,
// with a reason for the log and no harm to the job. Node only.

import type { IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import { type WebSocket, WebSocketServer } from 'ws';
import { Door, type DoorPolicy, hostOf, nameOf, type Refusal } from './door.js';
import { MAX_MESSAGE_BYTES } from './limits.js';
import { NodeSocket } from './node-socket.js';
import { challenge, REFUSED_CODE } from './prove.js';
import type { ListenOptions, SocketListener } from './socket-platform.js';

export interface AcceptorOptions extends ListenOptions {
  readonly secret: string;
  readonly policy: DoorPolicy;
  /** Called with each peer that was turned away, and why. */
  readonly onRefused?: ((refusal: Refusal) => void) | undefined;
}

export class Acceptor implements SocketListener {
  readonly #options: AcceptorOptions;
  readonly #upgrades: WebSocketServer;
  #door: Door | undefined;

  private constructor(options: AcceptorOptions) {
    this.#options = options;
    this.#upgrades = new WebSocketServer({
      noServer: true,
      perMessageDeflate: false,
      autoPong: false, // see NodeSocket
      maxPayload: MAX_MESSAGE_BYTES,
      clientTracking: false,
    });
    this.#upgrades.on('wsClientError', (error, socket) => {
      this.#door?.refuse(socket as Socket, error.message);
      socket.destroy();
    });
  }

  /** Resolves when it listens. Rejects with ListenError. */
  static async listen(options: AcceptorOptions): Promise<Acceptor> {
    const acceptor = new Acceptor(options);
    acceptor.#door = await Door.open(options, options.policy, {
      onUpgrade: (request, socket, head) => acceptor.#onUpgrade(request, socket, head),
      onRefused: (refusal) => options.onRefused?.(refusal),
    });
    return acceptor;
  }

  get port(): number {
    return this.#door!.port;
  }

  close(): void {
    this.#door!.close();
  }

  #onUpgrade(request: IncomingMessage, connection: Socket, head: Buffer): void {
    this.#upgrades.handleUpgrade(request, connection, head, (socket) => {
      void this.#meet(socket, connection, request.headers.origin !== undefined);
    });
  }

  async #meet(socket: WebSocket, connection: Socket, isPage: boolean): Promise<void> {
    const { secret, refusalOf, onPeer, policy } = this.#options;
    const { proofMs } = policy.limits;
    const name = nameOf(connection);
    const stranger = new NodeSocket(socket, { connection, isPage });
    try {
      const hello = await challenge(stranger, { secret, proofMs, refusalOf });
      this.#door!.trust(name);
      stranger.trust(MAX_MESSAGE_BYTES);
      onPeer(hello, stranger, hostOf(connection));
    } catch (error) {
      this.#door!.refuse(connection, (error as Error).message);
      stranger.close(REFUSED_CODE, (error as Error).message);
    }
  }
}
