// Where a rank runs in Node: sockets and listeners of the `ws` library.

import { once } from 'node:events';
import { WebSocket } from 'ws';
import { Acceptor, type Refusal, type ServerTls } from './acceptor.js';
import { HeartbeatSender } from './heartbeat-sender.js';
import { limitsFor, MAX_MESSAGE_BYTES, type WsLimits } from './limits.js';
import { NodeSocket } from './node-socket.js';
import { PROOF_MS } from './prove.js';
import {
  type ListenOptions,
  OpenError,
  type OpenedSocket,
  type WsPlatform,
} from './ws-platform.js';

export interface NodePlatformOptions {
  readonly secret: string;
  readonly limits?: WsLimits | undefined;
  readonly allowedOrigins?: readonly string[] | undefined;
  readonly tls?: WsTls | undefined;
  readonly onRefused?: ((refusal: Refusal) => void) | undefined;
  /** Default: 'worker'. */
  readonly heartbeat?: 'worker' | 'link' | undefined;
}

/** PEM, as `node:tls` takes them. */
export interface WsTls extends Partial<ServerTls> {
  /** Who signed the others' certificates. Default: the authorities that Node knows. */
  readonly ca?: string | Buffer | readonly (string | Buffer)[];
  /** The name in the others' certificates, where they are dialed by address. */
  readonly servername?: string;
}

/** A host or a pod that is not up yet, a name that is not known yet, or a listener under a flood. */
const EARLY_CODES = new Set([
  'ECONNREFUSED',
  'ECONNRESET',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'ETIMEDOUT',
  'ENOTFOUND',
  'EAI_AGAIN',
]);

export class NodePlatform implements WsPlatform {
  /** A refused connection on a host costs little, and a job starts when the last rank has come. */
  readonly maxRetryMs = 200;
  readonly #options: NodePlatformOptions;

  constructor(options: NodePlatformOptions) {
    this.#options = options;
  }

  /** `limitMs`: until it is open, at most. */
  async open(url: string, limitMs = PROOF_MS): Promise<OpenedSocket> {
    const socket = new WebSocket(url, {
      ...this.#clientTls(),
      perMessageDeflate: false,
      autoPong: false, // see NodeSocket
      maxPayload: MAX_MESSAGE_BYTES,
      handshakeTimeout: Math.max(1, Math.min(PROOF_MS, limitMs)),
      skipUTF8Validation: true,
    });
    // Before it is open: the listener's first words come in the same packet as the upgrade.
    const wire = new NodeSocket(socket);
    try {
      await once(socket, 'open');
      return { socket: wire, localHost: wire.localHost };
    } catch (error) {
      const { code, message } = error as NodeJS.ErrnoException;
      const isEarly = EARLY_CODES.has(code ?? '') || message.includes('timed out');
      throw new OpenError(code ?? message, { isEarly });
    }
  }

  async startHeartbeats(heartbeatMs: number): Promise<HeartbeatSender | undefined> {
    const {
      heartbeat,
      secret,
      limits = limitsFor(8),
      allowedOrigins = [],
      onRefused,
    } = this.#options;
    if (heartbeat === 'link') {
      return undefined;
    }
    const listening = { ...limits, allowedOrigins, tls: this.#serverTls() ?? null };
    return new HeartbeatSender({
      heartbeatMs,
      secret,
      tls: this.#clientTls(),
      listening,
      onRefused,
    });
  }

  listen(options: ListenOptions): Promise<Acceptor> {
    const { secret, limits, allowedOrigins, onRefused } = this.#options;
    const tls = this.#serverTls();
    return Acceptor.listen({ ...options, secret, limits, allowedOrigins, onRefused, tls });
  }

  #serverTls(): ServerTls | undefined {
    const { key, cert } = this.#options.tls ?? {};
    return key === undefined || cert === undefined ? undefined : { key, cert };
  }

  /** What is needed to trust a listener. The key is the listening side's only. */
  #clientTls(): { ca?: string | Buffer | (string | Buffer)[]; servername?: string } {
    const { ca, servername } = this.#options.tls ?? {};
    return {
      ...(ca === undefined ? {} : { ca: Array.isArray(ca) ? [...ca] : (ca as string | Buffer) }),
      ...(servername === undefined ? {} : { servername }),
    };
  }
}
