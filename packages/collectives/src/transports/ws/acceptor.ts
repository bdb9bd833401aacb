// The listening side of a process: accepts peers that prove themselves and refuses the rest with a
// reason and no harm to the job. Node only.

import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { type WebSocket, WebSocketServer } from 'ws';
import { CHUNK_BYTES } from './frame.js';
import { NodeSocket } from './node-socket.js';
import { challenge, PROOF_MS, REFUSED_CODE } from './prove.js';
import type { ListenOptions, WsListener } from './ws-platform.js';

/** Chunks and inline frames are smaller; a peer that sends more is cut off. */
export const MAX_MESSAGE_BYTES = 2 * CHUNK_BYTES;

/** Sockets that have proved nothing, at most: a flood costs no more than these. */
const MAX_STRANGERS = 256;

export interface AcceptorOptions extends ListenOptions {
  readonly secret: string;
}

export class Acceptor implements WsListener {
  readonly #options: AcceptorOptions;
  readonly #http: Server;
  readonly #server: WebSocketServer;
  readonly #strangers = new Set<NodeSocket>();

  private constructor(options: AcceptorOptions) {
    this.#options = options;
    this.#http = createServer((_, response) => response.writeHead(426).end());
    this.#server = new WebSocketServer({
      server: this.#http,
      perMessageDeflate: false,
      maxPayload: MAX_MESSAGE_BYTES,
      clientTracking: false,
      // Any web page can open a socket to loopback: what names an Origin is a browser.
      verifyClient: ({ req }: { req: IncomingMessage }) =>
        req.headers.origin === undefined && this.#strangers.size < MAX_STRANGERS,
    });
    this.#server.on('connection', (socket, request) => void this.#meet(socket, request));
  }

  /** Resolves when it listens. */
  static async listen(options: AcceptorOptions): Promise<Acceptor> {
    const acceptor = new Acceptor(options);
    acceptor.#http.listen(options.port, options.host);
    await once(acceptor.#server, 'listening');
    acceptor.#server.on('error', () => {}); // an error of one connection is that connection's
    return acceptor;
  }

  get port(): number {
    return (this.#http.address() as AddressInfo).port;
  }

  close(): void {
    this.#server.close();
    this.#http.close();
    for (const socket of this.#strangers) {
      socket.terminate();
    }
  }

  /** Whether listening keeps the process alive, as it does at first. */
  setKeepsAlive(keepsAlive: boolean): void {
    if (keepsAlive) {
      this.#http.ref();
    } else {
      this.#http.unref();
    }
  }

  async #meet(socket: WebSocket, { socket: connection }: IncomingMessage): Promise<void> {
    const { secret, refusalOf, onPeer } = this.#options;
    const host = connection.remoteAddress ?? this.#options.host;
    const stranger = new NodeSocket(socket);
    stranger.connection = connection;
    this.#strangers.add(stranger);
    try {
      const hello = await challenge(stranger, { secret, proofMs: PROOF_MS, refusalOf });
      this.#strangers.delete(stranger);
      onPeer(hello, stranger, host.replace(/^::ffff:/, ''));
    } catch (error) {
      this.#strangers.delete(stranger);
      stranger.close(REFUSED_CODE, (error as Error).message);
    }
  }
}
