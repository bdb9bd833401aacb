// The listening side of a rank while the mesh forms: accepts peers that prove themselves, refuses the
// rest with a reason and no harm to the job, and stops listening when all have come.

import { once } from 'node:events';
import type { IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import { type WebSocket, WebSocketServer } from 'ws';
import { CHUNK_BYTES } from './frame.js';
import { challenge, type Hello, REFUSED_CODE } from './handshake.js';

/** Chunks and inline frames are smaller; a peer that sends more is cut off. */
export const MAX_MESSAGE_BYTES = 2 * CHUNK_BYTES;

/** Sockets that have proved nothing, at most: a flood costs no more than these. */
const MAX_STRANGERS = 256;

export interface AcceptorOptions {
  readonly rank: number;
  readonly worldSize: number;
  readonly secret: string;
  readonly host: string;
  readonly port: number;
  /** Ranks still awaited; each may come once. */
  readonly expected: Set<number>;
  onPeer(hello: Hello, socket: WebSocket, host: string): void;
}

export class Acceptor {
  readonly #options: AcceptorOptions;
  readonly #server: WebSocketServer;
  readonly #strangers = new Set<WebSocket>();

  private constructor(options: AcceptorOptions) {
    this.#options = options;
    this.#server = new WebSocketServer({
      host: options.host,
      port: options.port,
      perMessageDeflate: false,
      maxPayload: MAX_MESSAGE_BYTES,
      clientTracking: false,
      // Any web page can open a socket to loopback: what names an Origin is a browser.
      verifyClient: ({ req }: { req: IncomingMessage }) =>
        req.headers.origin === undefined && this.#strangers.size < MAX_STRANGERS,
    });
    this.#server.on('connection', (socket, request) => {
      void this.#meet(socket, request.socket.remoteAddress ?? options.host);
    });
  }

  /** Resolves when it listens. */
  static async listen(options: AcceptorOptions): Promise<Acceptor> {
    const acceptor = new Acceptor(options);
    await once(acceptor.#server, 'listening');
    acceptor.#server.on('error', () => {}); // an error of one connection is that connection's
    return acceptor;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  /** Frees the port; accepted sockets live on, others end. */
  close(): void {
    this.#server.close();
    for (const socket of this.#strangers) {
      socket.terminate();
    }
  }

  async #meet(socket: WebSocket, host: string): Promise<void> {
    this.#strangers.add(socket);
    const ignore = () => {};
    socket.on('error', ignore);
    try {
      const met = await challenge(socket, this.#options.secret);
      const refusal = 'refusal' in met ? met.refusal : this.#refusalOf(met.hello);
      if ('refusal' in met || refusal !== undefined) {
        socket.close(REFUSED_CODE, refusal);
        setTimeout(() => socket.terminate(), 1000).unref();
        return;
      }
      this.#options.expected.delete(met.hello.rank);
      met.accept();
      this.#options.onPeer(met.hello, socket, host.replace(/^::ffff:/, ''));
    } catch {
      socket.terminate();
    } finally {
      this.#strangers.delete(socket);
    }
  }

  #refusalOf(hello: Hello): string | undefined {
    const { rank, worldSize, expected } = this.#options;
    if (hello.worldSize !== worldSize) {
      return `world size is ${worldSize} here, not ${hello.worldSize}`;
    }
    if (hello.target !== rank) {
      return `this is rank ${rank}, not ${hello.target}`;
    }
    return expected.has(hello.rank) ? undefined : `rank ${hello.rank} is not awaited here`;
  }
}
