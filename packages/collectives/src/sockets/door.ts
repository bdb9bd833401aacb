// One listening port as strangers meet it: connections are counted and sorted by whether they speak
// TLS, web pages of other origins and whatever is no WebSocket are refused, and what is left is
// handed on as a request to upgrade. Acceptors and heartbeat workers stand behind a door each. It
// needs nothing but Node.

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

/**
 * What may come in at a door: the same for all doors of a process, and data that can be posted to a
 * worker.
 */
export interface DoorPolicy {
  readonly limits: WsLimits;
  /** Pages of these origins may join, if they know the secret. */
  readonly allowedOrigins: readonly string[];
  /** With a certificate the door speaks TLS, and nothing else. */
  readonly tls: ServerTls | undefined;
  /** The key that `tlsKeyOf` makes of the secret; undefined where there is no TLS by the secret. */
  readonly pskKey: Uint8Array | undefined;
  /** Whether peers of this host may speak in the clear, beside TLS by the secret. */
  readonly mayBePlain: boolean;
}

export interface DoorEvents {
  /** A request for a WebSocket, whose connection is named `name` until it is trusted. */
  onUpgrade(request: IncomingMessage, socket: Socket, head: Buffer): void;
  onRefused(refusal: Refusal): void;
}

const MAX_REASON_LENGTH = 300;

/** A browser's request with cookies for localhost fits; more is nothing of ours. */
const MAX_HEADER_BYTES = 16 * 1024;

export class Door {
  readonly #policy: DoorPolicy;
  readonly #events: DoorEvents;
  readonly #servers: readonly Server[];
  /** What listens: the one server, or what stands before both. */
  readonly #listener: Server | TcpServer;
  /** Strangers by address and port, since TLS hides one socket in another. */
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
    // This hears of a connection before a byte of it is read.
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

  /** The connection of that name has proved itself, and costs what a peer may. */
  trust(name: string): void {
    this.#gate.trust(name);
  }

  /** Tells why somebody is turned away; whoever calls this ends the connection. */
  refuse(socket: Socket, reason: string): void {
    // Strangers have a say in the reason, and it goes into a log.
    const printable = reason.replace(/[^\x20-\x7e]/g, '?').slice(0, MAX_REASON_LENGTH);
    this.#events.onRefused({ from: nameOf(socket), reason: printable });
  }

  /** Frees the port, and drops those that have proved nothing. */
  close(): void {
    this.#listener.close();
    for (const socket of this.#gate.strangers()) {
      socket.destroy();
    }
  }

  /** Whether listening keeps the process alive, as it does at first. */
  setKeepsAlive(keepsAlive: boolean): void {
    if (keepsAlive) {
      this.#listener.ref();
    } else {
      this.#listener.unref();
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
    // Servers with TLS pass their handshakes' errors on as this event.
    server.on('clientError', (error, stream) => this.#onClientError(error, stream as Socket));
    server.on('upgrade', (request, stream, head) => {
      const socket = stream as Socket;
      const { origin } = request.headers;
      // Any web page can open a socket to loopback: what names an origin is a browser.
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
      // Words that are no TLS tell the peer at once that there is none here; a reset looks like a
      // flood.
      socket.end('HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n');
      this.refuse(socket, 'it speaks TLS');
      return;
    }
    // OpenSSL's messages begin with an address in memory; its codes say the same.
    const isTls = error.code?.startsWith('ERR_SSL_') === true;
    this.refuse(socket, isTls ? `no TLS handshake (${error.code})` : error.message);
    socket.destroy();
  }
}

/**
 * One for what is said in the clear, one for TLS; with a certificate or without any TLS just one.
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

/** What a connection is called at the gate and in logs, while it is open. */
export function nameOf(socket: Socket): string {
  return `${hostOf(socket)}:${socket.remotePort}`;
}
