// The listening side of a process: accepts peers that prove themselves and refuses the rest, with a
// reason in the log and no harm to the job. Node only.

import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server } from 'node:http';
import { createServer as createSecureServer, type ServerOptions as HttpsOptions } from 'node:https';
import {
  type AddressInfo,
  createServer as createTcpServer,
  type Socket,
  type Server as TcpServer,
} from 'node:net';
import { type WebSocket, WebSocketServer } from 'ws';
import type { ListenOptions, WsListener } from '../transports/ws/ws-platform.js';
import { limitsFor, MAX_MESSAGE_BYTES, type WsLimits } from './limits.js';
import { ListenError } from './listen-error.js';
import { NodeSocket } from './node-socket.js';
import { challenge, REFUSED_CODE } from './prove.js';
import { sortByTls } from './sort-by-tls.js';
import { createStrangerGate, type StrangerGate } from './stranger-gate.js';
import { pskServerOptions, tlsKeyOf } from './tls-psk.js';

const MAX_REASON_LENGTH = 300;

/** A browser's request with cookies for localhost; more is nothing of ours. */
const MAX_HEADER_BYTES = 16 * 1024;

const TLS_FIRST_BYTE = 0x16;

export interface AcceptorOptions extends ListenOptions {
  readonly secret: string;
  /** Default: those for a world of a few ranks. */
  readonly limits?: WsLimits | undefined;
  /** Pages of these origins may join, if they know the secret. Default: none. */
  readonly allowedOrigins?: readonly string[] | undefined;
  /** Listens for wss with a certificate, and for nothing else. */
  readonly tls?: ServerTls | undefined;
  /** Where there is no `tls`. Default: 'auto'. */
  readonly encryption?: Encryption | undefined;
  /** Who was turned away, and why. */
  readonly onRefused?: ((refusal: Refusal) => void) | undefined;
}

/**
 * TLS by a key from the job's secret, between Node processes. 'auto': between hosts, and where a peer of
 * this host asks for it; 'always'; 'none': whoever is on the way between two hosts can read what travels
 * and change it unseen.
 */
export type Encryption = 'auto' | 'always' | 'none';

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
  /** What listens: the one server, or what stands before both. */
  readonly #door: Server | TcpServer;
  readonly #servers: readonly Server[];
  readonly #upgrades: readonly WebSocketServer[];
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
    this.#servers = this.#createServers();
    this.#door = this.#servers.length === 1 ? this.#servers[0]! : createTcpServer();
    // Before a byte is read.
    this.#door.on('connection', (socket: Socket) => this.#onConnection(socket));
    this.#upgrades = this.#servers.map((server) => this.#serveUpgrades(server));
  }

  /** One for what is said in the clear, one for TLS; with a certificate or without any TLS just one. */
  #createServers(): Server[] {
    const { secret, tls, encryption = 'auto' } = this.#options;
    const common = { maxHeaderSize: MAX_HEADER_BYTES };
    if (tls !== undefined) {
      return [createSecureServer({ ...common, key: tls.key, cert: tls.cert })];
    }
    const plain = createServer(common);
    if (encryption === 'none') {
      return [plain];
    }
    const psk = pskServerOptions(tlsKeyOf(secret));
    return [plain, createSecureServer({ ...common, ...psk } as HttpsOptions)];
  }

  #onConnection(socket: Socket): void {
    socket.on('error', () => {});
    this.#gate.enter(keyOf(socket), socket);
    const [plain, secure] = this.#servers;
    if (secure !== undefined && !socket.destroyed) {
      sortByTls(socket, {
        secure,
        plain: this.#options.encryption === 'always' ? undefined : plain,
        refuse: (stranger, reason) => this.#refuse(stranger, reason),
      });
    }
  }

  #serveUpgrades(server: Server): WebSocketServer {
    server.on('request', (request, response) => {
      this.#refuse(request.socket, 'a request that is no WebSocket');
      response.writeHead(426, { connection: 'close' }).end();
    });
    const upgrades = new WebSocketServer({
      server,
      perMessageDeflate: false,
      autoPong: false, // see NodeSocket
      maxPayload: MAX_MESSAGE_BYTES,
      clientTracking: false,
      verifyClient: ({ req }: { req: IncomingMessage }) => this.#isWelcome(req),
    });
    upgrades.on('wsClientError', (error, socket) => {
      this.#refuse(socket as Socket, error.message);
      socket.destroy();
    });
    upgrades.on('connection', (socket, request) => {
      void this.#meet(socket, request.socket, request.headers.origin !== undefined);
    });
    // It passes on the server's errors, and one that nobody hears ends the process.
    upgrades.on('error', () => {});
    return upgrades;
  }

  /** Resolves when it listens. Rejects with ListenError. */
  static async listen(options: AcceptorOptions): Promise<Acceptor> {
    const acceptor = new Acceptor(options);
    try {
      const listening = once(acceptor.#door, 'listening');
      acceptor.#door.listen(options.port, options.host);
      await listening;
    } catch (error) {
      acceptor.close();
      throw new ListenError(options.host, options.port, error as NodeJS.ErrnoException);
    }
    for (const server of acceptor.#servers) {
      // Servers with TLS pass their handshakes' errors on as this event.
      server.on('clientError', (error, stream) => acceptor.#drop(error, stream as Socket));
    }
    // An error of one connection is that connection's.
    acceptor.#door.on('error', () => {});
    return acceptor;
  }

  get port(): number {
    return (this.#door.address() as AddressInfo).port;
  }

  close(): void {
    for (const upgrades of this.#upgrades) {
      upgrades.close();
    }
    this.#door.close();
    for (const socket of this.#gate.strangers()) {
      socket.destroy();
    }
  }

  /** Whether listening keeps the process alive, as it does at first. */
  setKeepsAlive(keepsAlive: boolean): void {
    if (keepsAlive) {
      this.#door.ref();
    } else {
      this.#door.unref();
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

  #drop(error: NodeJS.ErrnoException & { readonly rawPacket?: Buffer }, socket: Socket): void {
    if (error.rawPacket?.[0] === TLS_FIRST_BYTE) {
      // Words that are no TLS tell the peer at once that there is none here; a reset looks like a flood.
      socket.end('HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n');
      this.#refuse(socket, 'it speaks TLS');
      return;
    }
    // OpenSSL's messages begin with an address in memory; its codes say the same.
    const isTls = error.code?.startsWith('ERR_SSL_') === true;
    this.#refuse(socket, isTls ? `no TLS handshake (${error.code})` : error.message);
    socket.destroy();
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
