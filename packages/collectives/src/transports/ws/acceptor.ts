// The listening side of a process: accepts peers that prove themselves and refuses the rest, with a
// reason in the log and no harm to the job. Node only.

import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server } from 'node:http';
import { createServer as createSecureServer } from 'node:https';
import type { AddressInfo, Socket } from 'node:net';
import { type WebSocket, WebSocketServer } from 'ws';
import { limitsFor, MAX_MESSAGE_BYTES, type WsLimits } from './limits.js';
import { ListenError } from './listen-error.js';
import { NodeSocket } from './node-socket.js';
import { challenge, REFUSED_CODE } from './prove.js';
import { createStrangerGate, type StrangerGate } from './stranger-gate.js';
import type { ListenOptions, WsListener } from './ws-platform.js';

const MAX_REASON_LENGTH = 300;

/** A browser's request with cookies for localhost; more is nothing of ours. */
const MAX_HEADER_BYTES = 16 * 1024;

export interface AcceptorOptions extends ListenOptions {
  readonly secret: string;
  /** Default: those for a world of a few ranks. */
  readonly limits?: WsLimits | undefined;
  /** Pages of these origins may join, if they know the secret. Default: none. */
  readonly allowedOrigins?: readonly string[] | undefined;
  /** Listens for wss. */
  readonly tls?: ServerTls | undefined;
  /** Who was turned away, and why. */
  readonly onRefused?: ((refusal: Refusal) => void) | undefined;
}

/** PEM, as `node:tls` takes them. */
export interface ServerTls {
  readonly key: string | Buffer;
  readonly cert: string | Buffer;
}

export interface Refusal {
  /** `address:port` of who came. */
  readonly from: string;
  readonly reason: string;
}

export class Acceptor implements WsListener {
  readonly #options: AcceptorOptions;
  readonly #server: Server;
  readonly #upgrades: WebSocketServer;
  readonly #limits: WsLimits;
  /** By address and port, since TLS hides one socket in another. */
  readonly #gate: StrangerGate<Socket>;

  private constructor(options: AcceptorOptions) {
    this.#options = options;
    this.#limits = options.limits ?? limitsFor(8);
    this.#gate = createStrangerGate(this.#limits, (socket, reason) => {
      this.#refuse(socket, reason);
      socket.destroy();
    });
    const common = { maxHeaderSize: MAX_HEADER_BYTES };
    this.#server =
      options.tls === undefined
        ? createServer(common)
        : createSecureServer({ ...common, key: options.tls.key, cert: options.tls.cert });
    // Before a byte is read.
    this.#server.on('connection', (socket) => {
      socket.on('error', () => {});
      this.#gate.enter(keyOf(socket), socket);
    });
    this.#server.on('request', (request, response) => {
      this.#refuse(request.socket, 'a request that is no WebSocket');
      response.writeHead(426, { connection: 'close' }).end();
    });
    this.#upgrades = new WebSocketServer({
      server: this.#server,
      perMessageDeflate: false,
      autoPong: false, // see NodeSocket
      maxPayload: MAX_MESSAGE_BYTES,
      clientTracking: false,
      verifyClient: ({ req }: { req: IncomingMessage }) => this.#isWelcome(req),
    });
    this.#upgrades.on('wsClientError', (error, socket) => {
      this.#refuse(socket as Socket, error.message);
      socket.destroy();
    });
    this.#upgrades.on('connection', (socket, request) => {
      void this.#meet(socket, request.socket, request.headers.origin !== undefined);
    });
  }

  /** Resolves when it listens. Rejects with ListenError. */
  static async listen(options: AcceptorOptions): Promise<Acceptor> {
    const acceptor = new Acceptor(options);
    // It passes on the server's errors, and one that nobody hears ends the process.
    acceptor.#upgrades.on('error', () => {});
    try {
      const listening = once(acceptor.#server, 'listening');
      acceptor.#server.listen(options.port, options.host);
      await listening;
    } catch (error) {
      acceptor.close();
      throw new ListenError(options.host, options.port, error as NodeJS.ErrnoException);
    }
    const drop = (error: Error, socket: Socket) => {
      acceptor.#refuse(socket, error.message);
      socket.destroy();
    };
    acceptor.#server.on('clientError', drop).on('tlsClientError', drop);
    // An error of one connection is that connection's.
    acceptor.#server.on('error', () => {});
    return acceptor;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  close(): void {
    this.#upgrades.close();
    this.#server.close();
    for (const socket of this.#gate.strangers()) {
      socket.destroy();
    }
  }

  /** Whether listening keeps the process alive, as it does at first. */
  setKeepsAlive(keepsAlive: boolean): void {
    if (keepsAlive) {
      this.#server.ref();
    } else {
      this.#server.unref();
    }
  }

  /** Any web page can open a socket to loopback: what names an Origin is a browser. */
  #isWelcome({ headers, socket }: IncomingMessage): boolean {
    const { origin } = headers;
    if (origin === undefined || this.#options.allowedOrigins?.includes(origin) === true) {
      return true;
    }
    this.#refuse(socket, `origin ${origin} is not allowed`);
    return false;
  }

  async #meet(socket: WebSocket, raw: Socket, isPage: boolean): Promise<void> {
    const { secret, refusalOf, onPeer } = this.#options;
    const { proofMs } = this.#limits;
    const key = keyOf(raw);
    const stranger = new NodeSocket(socket, { connection: raw, isPage });
    try {
      const hello = await challenge(stranger, { secret, proofMs, refusalOf });
      this.#gate.trust(key);
      stranger.trust(MAX_MESSAGE_BYTES);
      onPeer(hello, stranger, hostOf(raw));
    } catch (error) {
      this.#refuse(raw, (error as Error).message);
      stranger.close(REFUSED_CODE, (error as Error).message);
    }
  }

  #refuse(socket: Socket, reason: string): void {
    // Strangers have a say in it, and it goes into a log.
    const printable = reason.replace(/[^\x20-\x7e]/g, '?').slice(0, MAX_REASON_LENGTH);
    this.#options.onRefused?.({ from: keyOf(socket), reason: printable });
  }
}

function hostOf(socket: Socket): string {
  return (socket.remoteAddress ?? 'unknown').replace(/^::ffff:/, '');
}

function keyOf(socket: Socket): string {
  return `${hostOf(socket)}:${socket.remotePort}`;
}
