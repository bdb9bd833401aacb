// The server of a key-value store, in rank 0 or on its own: it lets in clients that prove that they
// know the secret, and keeps runs apart. Neither it nor its clients' sockets keep a process alive,
// unless it is told to.

import { StoreError } from '../errors.js';
import type { Acceptor } from '../sockets/acceptor.js';
import type { Hello } from '../sockets/handshake.js';
import { LOOPBACK } from '../sockets/is-loopback.js';
import { limitsFor, type WsLimits } from '../sockets/limits.js';
import type { ListenSecurityOptions } from '../sockets/listen-security.js';
import { NodeSockets } from '../sockets/node-sockets.js';
import type { WireSocket } from '../sockets/wire-socket.js';
import { DEFAULT_STORE_LIMITS, StoreBudget, type StoreLimits } from './store-limits.js';
import { StoreRuns } from './store-runs.js';
import { StoreSession } from './store-session.js';

/** The options of `StoreServer.listen`: the secret, the address, TLS, and limits. */
export interface StoreServerOptions
  extends Pick<ListenSecurityOptions, 'tls' | 'encryption' | 'onRefused'> {
  /** The secret, of at least 16 characters, which only the clients know. */
  readonly secret: string;
  /** The address on which it listens. Default: 127.0.0.1. */
  readonly address?: string;
  /** The port on which it listens. Default: 0, which takes a free one. */
  readonly port?: number;
  /** Whether it keeps the process alive, for a store in a process of its own. Default: false. */
  readonly keepsAlive?: boolean;
  /** Default: DEFAULT_STORE_LIMITS, and for strangers the limits of a job of 256 ranks. */
  readonly limits?: Partial<StoreLimits & WsLimits>;
}

/** An HMAC is of no use with a secret that can be guessed. */
const MIN_SECRET_LENGTH = 16;

/** The number of clients that may connect in one second; further ones try again. */
const EXPECTED_CLIENTS = 256;

/**
 * Serves a key-value store to clients that prove that they know the secret. Values live in this
 * process's memory, apart for each run; it keeps the process alive only if it is told to. Closing
 * it makes the calls of clients that are left reject with STORE_LOST.
 */
export class StoreServer implements AsyncDisposable {
  readonly #options: StoreServerOptions;
  readonly #limits: StoreLimits;
  readonly #runs: StoreRuns;
  readonly #sessions = new Set<StoreSession>();
  #acceptor: Acceptor | undefined;
  #onEmpty: (() => void) | undefined;

  private constructor(options: StoreServerOptions) {
    this.#options = options;
    this.#limits = { ...DEFAULT_STORE_LIMITS, ...options.limits };
    this.#runs = new StoreRuns(new StoreBudget(this.#limits));
  }

  /**
   * Resolves when it listens. Rejects with StoreError STORE_JOIN where it can't, or STORE_USAGE.
   */
  static async listen(options: StoreServerOptions): Promise<StoreServer> {
    const { secret, address: host = LOOPBACK, port = 0, keepsAlive = false } = options;
    const { tls, encryption, onRefused } = options;
    if (typeof secret !== 'string' || secret.length < MIN_SECRET_LENGTH) {
      const what = `expected a secret of at least ${MIN_SECRET_LENGTH} characters`;
      throw new StoreError('STORE_USAGE', `store: ${what}.`);
    }
    if (tls !== undefined && !(tls.key && tls.cert)) {
      throw new StoreError('STORE_USAGE', 'store: expected tls.key and tls.cert: it listens.');
    }
    const server = new StoreServer(options);
    try {
      const limits = limitsFor(EXPECTED_CLIENTS, options.limits);
      const sockets = new NodeSockets({ secret, limits, tls, encryption, onRefused });
      server.#acceptor = await sockets.listen({
        host,
        port,
        refusalOf: (hello) => server.#refusalOf(hello),
        onPeer: (hello, socket) => server.#onClient(hello, socket),
      });
    } catch (error) {
      throw new StoreError('STORE_JOIN', `store: ${(error as Error).message}`);
    }
    server.#acceptor.setKeepsAlive(keepsAlive);
    return server;
  }

  get port(): number {
    return this.#acceptor!.port;
  }

  get numClients(): number {
    return this.#sessions.size;
  }

  /**
   * Stops listening, waits at most `waitMs` (default: 0) for the clients to leave, and drops those
   * that are left: their calls reject with STORE_LOST.
   */
  async close({ waitMs = 0 }: { readonly waitMs?: number } = {}): Promise<void> {
    this.#acceptor?.close();
    if (waitMs > 0 && this.#sessions.size > 0) {
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, waitMs);
        this.#onEmpty = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
    for (const session of this.#sessions) {
      session.terminate();
    }
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  #refusalOf(hello: Hello): string | undefined {
    if (hello.role !== 'store') {
      return `this is a store, no ${hello.role}`;
    }
    const { maxClients } = this.#limits;
    return this.#sessions.size < maxClients ? undefined : `${maxClients} clients are here already`;
  }

  #onClient(hello: Hello, socket: WireSocket): void {
    socket.setKeepsAlive?.(this.#options.keepsAlive ?? false);
    const session: StoreSession = new StoreSession({
      socket,
      hello,
      runs: this.#runs,
      limits: this.#limits,
      onEnd: () => {
        this.#sessions.delete(session);
        if (this.#sessions.size === 0) {
          this.#onEmpty?.();
        }
      },
    });
    this.#sessions.add(session);
  }
}
