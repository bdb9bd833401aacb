// One listening port as strangers meet it. A stranger is a connection that has not authenticated
// itself yet. Connections are counted, and sorted by whether they speak TLS; of each a single short
// request is read, and what asks for no WebSocket, or comes from a web page of another origin, is
// refused. What is left is handed on as a request to upgrade, and authenticated behind it
// (authenticate.ts). Each acceptor and each heartbeat worker has a listener of its own. It needs
// nothing but Node.

import { once } from 'node:events';
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net';
import { createServer as createTlsServer, type Server as TlsServer } from 'node:tls';
import { type ReadHead, readHead } from './http-head.js';
import { addressOfName } from './is-loopback.js';
import type { WsLimits } from './limits.js';
import { ListenError } from './listen-error.js';
import { pskServerOptions } from './tls-psk.js';
import { UnauthenticatedLimiter } from './unauthenticated-limiter.js';
import {
  type Denial,
  deny,
  MAX_HEAD_BYTES,
  MAX_PAGE_HEAD_BYTES,
  NO_WEBSOCKET,
  parseUpgrade,
  type UpgradeRequest,
} from './upgrade.js';

/** A key and a certificate in PEM, as `node:tls` takes them. */
export interface ServerTls {
  readonly key: string | Buffer;
  readonly cert: string | Buffer;
}

/** Somebody whose connection was turned away, and why. A stranger may have chosen the text. */
export interface TurnedAway {
  /** The `address:port` of the peer. */
  readonly from: string;
  readonly reason: string;
}

/**
 * What a listener lets in. It is the same for all listeners of a process, and is plain data that
 * can be posted to a worker.
 */
export interface ListenerPolicy {
  readonly limits: WsLimits;
  /** The origins of pages that may join, if they know the secret. */
  readonly allowedOrigins: readonly string[];
  /** The certificate; with one the listener speaks TLS, and nothing else. */
  readonly tls: ServerTls | undefined;
  /**
   * The key that `tlsKeyOf` makes of the secret; undefined where TLS is not made with the secret.
   */
  readonly pskKey: Uint8Array | undefined;
  /** Whether peers on this host may speak unencrypted, beside TLS with the secret. */
  readonly mayBePlain: boolean;
}

export interface ListenerEvents {
  /** Called with a request for a WebSocket. Its connection is called `name` until it is trusted. */
  onUpgrade(request: UpgradeRequest, socket: Socket, name: string): void;
  onRefused(turnedAway: TurnedAway): void;
}

/**
 * Connections that wait to be accepted, as many as Linux has room for by default. Where there is no
 * room it drops what comes, and a rank among 5,000 strangers asks again a second later.
 */
const BACKLOG = 4096;

/** The type of TLS's first record, a handshake. No HTTP request begins with it. */
const TLS_FIRST_BYTE = 0x16;

export class Listener {
  readonly #policy: ListenerPolicy;
  readonly #events: ListenerEvents;
  readonly #server: Server;
  /** It makes TLS of connections that the server has accepted, and does not listen itself. */
  readonly #secure: TlsServer | undefined;
  /** Strangers by address and port, because TLS hides one socket in another. */
  readonly #limiter: UnauthenticatedLimiter<Socket>;

  private constructor(policy: ListenerPolicy, events: ListenerEvents) {
    this.#policy = policy;
    this.#events = events;
    this.#limiter = new UnauthenticatedLimiter(policy.limits, (socket, from, reason) => {
      this.refuse(from, reason);
      socket.destroy();
    });
    this.#server = createServer((socket) => this.#onConnection(socket));
    this.#secure = createSecure(policy)
      ?.on('secureConnection', (socket: Socket) => this.#readRequest(socket))
      .on('tlsClientError', ({ code, message }: NodeJS.ErrnoException, socket: Socket) => {
        // OpenSSL's messages begin with an address in memory; its codes tell the same without it.
        this.refuse(nameOf(socket), `no TLS handshake (${code ?? message})`);
        socket.destroy();
      });
  }

  /** Resolves when it listens. Rejects with ListenError. */
  static async open(
    { host, port }: { readonly host: string; readonly port: number },
    policy: ListenerPolicy,
    events: ListenerEvents,
  ): Promise<Listener> {
    const listener = new Listener(policy, events);
    const server = listener.#server;
    try {
      const listening = once(server, 'listening');
      server.listen(port, addressOfName(host), BACKLOG);
      await listening;
    } catch (error) {
      throw new ListenError(host, port, error as NodeJS.ErrnoException);
    }
    server.on('error', () => {}); // an error of one connection is that connection's
    return listener;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  /**
   * Notes that the connection of that name has authenticated itself, and may cost what a peer may.
   */
  trust(name: string): void {
    this.#limiter.trust(name);
  }

  /** Reports why a connection is turned away; the caller ends the connection. */
  refuse(from: string, reason: string): void {
    this.#events.onRefused({ from, reason });
  }

  /** Frees the port, and drops those connections that are not authenticated. */
  close(): void {
    this.#server.close();
    for (const socket of this.#limiter.unauthenticated()) {
      socket.destroy();
    }
  }

  #onConnection(socket: Socket): void {
    socket.on('error', () => {});
    if (!this.#limiter.enter(nameOf(socket), hostOf(socket), socket)) {
      return;
    }
    socket.once('data', (first: Buffer) => {
      socket.pause();
      const isTls = first[0] === TLS_FIRST_BYTE;
      const denial = denialOfFirst(isTls, socket.remoteAddress, this.#policy);
      if (denial !== undefined) {
        this.#turnAway(socket, denial);
        return;
      }
      socket.unshift(first);
      if (isTls) {
        this.#secure!.emit('connection', socket);
        process.nextTick(() => socket.resume());
      } else {
        this.#readRequest(socket);
      }
    });
  }

  #readRequest(socket: Socket): void {
    const name = nameOf(socket);
    const { allowedOrigins } = this.#policy;
    const maxBytes = allowedOrigins.length > 0 ? MAX_PAGE_HEAD_BYTES : MAX_HEAD_BYTES;
    socket.on('error', () => {});
    readHead(socket, { start: 'GET ', maxBytes }, (head) => {
      const request = admit(head, allowedOrigins);
      if ('status' in request) {
        this.#turnAway(socket, request);
      } else {
        this.#events.onUpgrade(request, socket, name);
        socket.resume();
      }
    });
  }

  #turnAway(socket: Socket, { status, reason }: Denial): void {
    this.refuse(nameOf(socket), reason);
    deny(socket, status);
  }
}

/** Why a connection gets no further than its first byte; undefined where it does. */
export function denialOfFirst(
  isTls: boolean,
  remoteAddress: string | undefined,
  { tls, pskKey, mayBePlain }: Pick<ListenerPolicy, 'tls' | 'pskKey' | 'mayBePlain'>,
): Denial | undefined {
  const hasTls = tls !== undefined || pskKey !== undefined;
  if (isTls) {
    // An answer that is not TLS tells the peer at once that there is none here. A reset would look
    // like a flood.
    return hasTls ? undefined : { status: 400, reason: 'it speaks TLS' };
  }
  const isLocal = /^(::ffff:)?127\.|^::1$/.test(remoteAddress ?? '');
  const isWelcome = !hasTls || (tls === undefined && mayBePlain && isLocal);
  return isWelcome ? undefined : { status: 426, reason: 'it speaks without TLS' };
}

/** The request of who may go on to authenticate, or why nobody may who begins like that. */
function admit(head: ReadHead, allowedOrigins: readonly string[]): UpgradeRequest | Denial {
  if (head === 'too long') {
    return TOO_LONG;
  }
  if (head === 'foreign' || head.rest.length > 0) {
    return { status: 400, reason: NO_WEBSOCKET }; // a peer of ours waits for the answer
  }
  const request = parseUpgrade(head.text);
  if ('status' in request) {
    return request;
  }
  const { origin } = request;
  // Any web page can open a socket to loopback, and only a browser sends an origin.
  if (origin !== undefined && !allowedOrigins.includes(origin)) {
    return { status: 401, reason: `origin ${origin} is not allowed` };
  }
  return origin === undefined && head.text.length > MAX_HEAD_BYTES ? TOO_LONG : request;
}

const TOO_LONG: Denial = { status: 431, reason: 'a request that is too long' };

function createSecure({ tls, pskKey }: ListenerPolicy): TlsServer | undefined {
  if (tls !== undefined) {
    return createTlsServer({ key: tls.key, cert: tls.cert, minVersion: 'TLSv1.3' });
  }
  return pskKey === undefined ? undefined : createTlsServer(pskServerOptions(pskKey));
}

export function hostOf(socket: Socket): string {
  return (socket.remoteAddress ?? 'a peer that is gone').replace(/^::ffff:/, '');
}

/** The name of a connection in the limiter and in logs. A closed one has forgotten it. */
export function nameOf(socket: Socket): string {
  return socket.remotePort === undefined
    ? hostOf(socket)
    : `${hostOf(socket)}:${socket.remotePort}`;
}
