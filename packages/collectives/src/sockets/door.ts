// One listening port as strangers meet it. A stranger is a connection that has not proved anything
// yet. Connections are counted, and sorted by whether they speak TLS; web pages of other origins,
// and whatever is not a WebSocket, are refused. What is left is handed on as a request to upgrade.
// Each acceptor and each heartbeat worker stands behind a door of its own. It needs nothing but
// Node.

import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server } from 'node:http';
import { createServer as createSecureServer, type ServerOptions as HttpsOptions } from 'node:https';
import {
  type AddressInfo,
  createServer as createTcpServer,
  type Socket,
  type Server as TcpServer,
} from 'node:net';
import type { WsLimits } from './limits.js';
import { ListenError } from './listen-error.js';
import { sortByTls, TLS_FIRST_BYTE } from './sort-by-tls.js';
import { StrangerGate } from './stranger-gate.js';
import { pskServerOptions } from './tls-psk.js';

/** A key and a certificate in PEM, as `node:tls` takes them. */
export interface ServerTls {
  readonly key: string | Buffer;
  readonly cert: string | Buffer;
}

/**
 * Somebody whose connection was turned away, and why. The reason has printable ASCII only, because
 * a stranger may have chosen its text.
 */
export interface Refusal {
  /** The `address:port` of the peer. */
  readonly from: string;
  readonly reason: string;
}

/**
 * What a door lets in. It is the same for all doors of a process, and is plain data that can be
 * posted to a worker.
 */
export interface DoorPolicy {
  readonly limits: WsLimits;
  /** The origins of pages that may join, if they know the secret. */
  readonly allowedOrigins: readonly string[];
  /** The certificate; with one the door speaks TLS, and nothing else. */
  readonly tls: ServerTls | undefined;
  /**
   * The key that `tlsKeyOf` makes of the secret; undefined where TLS is not made with the secret.
   */
  readonly pskKey: Uint8Array | undefined;
  /** Whether peers on this host may speak unencrypted, beside TLS with the secret. */
  readonly mayBePlain: boolean;
}

export interface DoorEvents {
  /** Called with a request for a WebSocket. Its connection is called `name` until it is trusted. */
  onUpgrade(request: IncomingMessage, socket: Socket, head: Buffer): void;
  onRefused(refusal: Refusal): void;
}

const MAX_REASON_LENGTH = 300;

/**
 * The longest header: a browser's request with cookies for localhost fits, and this package sends
 * no more.
 */
const MAX_HEADER_BYTES = 16 * 1024;

export class Door {
  readonly #policy: DoorPolicy;
  readonly #events: DoorEvents;
  readonly #servers: readonly Server[];
  /** What listens: the only server, or a TCP server in front of both. */
  readonly #listener: Server | TcpServer;
  /** Strangers by address and port, because TLS hides one socket in another. */
  readonly #gate: StrangerGate<Socket>;

  private constructor(policy: DoorPolicy, events: DoorEvents) {
    this.#policy = policy;
    this.#events = events;
    this.#gate = new StrangerGate(policy.limits, (socket, reason) => {
      this.refuse(socket, reason);
      socket.destroy();
    });
    this.#servers = createServers(policy);
    this.#listener = this.#servers.length === 1 ? this.#servers[0]! : createTcpServer();
    // This listener gets a connection before any byte of it is read.
    this.#listener.on('connection', (socket: Socket) => this.#onConnection(socket));
    for (const server of this.#servers) {
      this.#serve(server);
    }
  }

  /** Resolves when it listens. Rejects with ListenError. */
  static async open(
    { host, port }: { readonly host: string; readonly port: number },
    policy: DoorPolicy,
    events: DoorEvents,
  ): Promise<Door> {
    const door = new Door(policy, events);
    const listener = door.#listener;
    try {
      const listening = once(listener, 'listening');
      listener.listen(port, host);
      await listening;
    } catch (error) {
      throw new ListenError(host, port, error as NodeJS.ErrnoException);
    }
    listener.on('error', () => {}); // an error of one connection is that connection's
    return door;
  }

  get port(): number {
    return (this.#listener.address() as AddressInfo).port;
  }

  /** Notes that the connection of that name has proved itself, and may cost what a peer may. */
  trust(name: string): void {
    this.#gate.trust(name);
  }

  /** Reports why a connection is turned away; the caller ends the connection. */
  refuse(socket: Socket, reason: string): void {
    // Strangers may have chosen the reason's text, and it goes into a log.
    const printable = reason.replace(/[^\x20-\x7e]/g, '?').slice(0, MAX_REASON_LENGTH);
    this.#events.onRefused({ from: nameOf(socket), reason: printable });
  }

  /** Frees the port, and drops those connections that have proved nothing. */
  close(): void {
    this.#listener.close();
    for (const socket of this.#gate.strangers()) {
      socket.destroy();
    }
  }

  #onConnection(socket: Socket): void {
    socket.on('error', () => {});
    this.#gate.enter(nameOf(socket), socket);
    const [plain, secure] = this.#servers;
    if (secure !== undefined && !socket.destroyed) {
      sortByTls(socket, {
        secure,
        plain: this.#policy.mayBePlain ? plain : undefined,
        refuse: (stranger, reason) => this.refuse(stranger, reason),
      });
    }
  }

  #serve(server: Server): void {
    server.on('request', (request, response) => {
      this.refuse(request.socket, 'a request that is no WebSocket');
      response.writeHead(426, { connection: 'close' }).end();
    });
    // Servers with TLS pass errors of their handshakes on as this event.
    server.on('clientError', (error, stream) => this.#onClientError(error, stream as Socket));
    server.on('upgrade', (request, stream, head) => {
      const socket = stream as Socket;
      const { origin } = request.headers;
      // Any web page can open a socket to loopback, and only a browser sends an origin.
      if (origin !== undefined && !this.#policy.allowedOrigins.includes(origin)) {
        this.refuse(socket, `origin ${origin} is not allowed`);
        socket.once('finish', () => socket.destroy());
        socket.end('HTTP/1.1 401 Unauthorized\r\nConnection: close\r\nContent-Length: 0\r\n\r\n');
      } else {
        this.#events.onUpgrade(request, socket, head);
      }
    });
  }

  #onClientError(
    error: NodeJS.ErrnoException & { readonly rawPacket?: Buffer },
    socket: Socket,
  ): void {
    if (error.rawPacket?.[0] === TLS_FIRST_BYTE) {
      // An answer that is not TLS tells the peer at once that there is none here. A reset would
      // look like a flood.
      socket.end('HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n');
      this.refuse(socket, 'it speaks TLS');
      return;
    }
    // OpenSSL's messages begin with an address in memory; its codes tell the same without it.
    const isTls = error.code?.startsWith('ERR_SSL_') === true;
    this.refuse(socket, isTls ? `no TLS handshake (${error.code})` : error.message);
    socket.destroy();
  }
}

/**
 * Creates the servers: one for unencrypted connections and one for TLS; a single one with a
 * certificate, or without any TLS.
 */
function createServers({ tls, pskKey }: DoorPolicy): Server[] {
  const common = { maxHeaderSize: MAX_HEADER_BYTES };
  if (tls !== undefined) {
    return [createSecureServer({ ...common, key: tls.key, cert: tls.cert })];
  }
  const plain = createServer(common);
  if (pskKey === undefined) {
    return [plain];
  }
  return [plain, createSecureServer({ ...common, ...pskServerOptions(pskKey) } as HttpsOptions)];
}

export function hostOf(socket: Socket): string {
  return (socket.remoteAddress ?? 'unknown').replace(/^::ffff:/, '');
}

/** The name of a connection at the gate and in logs, while it is open. */
export function nameOf(socket: Socket): string {
  return `${hostOf(socket)}:${socket.remotePort}`;
}
