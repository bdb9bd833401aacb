// Where a rank runs in Node: sockets and listeners of the `ws` library.

import { once } from 'node:events';
import type { ConnectionOptions } from 'node:tls';
import { WebSocket } from 'ws';
import { Acceptor, type Encryption, type Refusal, type ServerTls } from '../../sockets/acceptor.js';
import { limitsFor, MAX_MESSAGE_BYTES, type WsLimits } from '../../sockets/limits.js';
import { NodeSocket } from '../../sockets/node-socket.js';
import { PROOF_MS } from '../../sockets/prove.js';
import { pskClientOptions, tlsKeyOf } from '../../sockets/tls-psk.js';
import { HeartbeatSender } from './heartbeat/node-heartbeat-sender.js';
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
  readonly encryption?: Encryption | undefined;
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

/** What a failure means where the key is the job's secret. */
const KEY_HINTS: ReadonlyMap<string, string> = new Map([
  ['EPROTO', ': wrong secret, or the peer listens with another `encryption`'],
  ['Unexpected server response: 426', ': the peer wants TLS, see `encryption`'],
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
      ...(url.startsWith('wss:') ? this.#clientTls() : {}),
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
      const hint = this.#options.tls === undefined ? KEY_HINTS.get(code ?? message) : undefined;
      throw new OpenError(`${code ?? message}${hint ?? ''}`, { isEarly });
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
    const { tls, encryption = 'auto' } = this.#options;
    const key = tls === undefined && encryption !== 'none' ? tlsKeyOf(secret) : null;
    const mayBePlain = encryption !== 'always';
    const secured = { tls: this.#serverTls() ?? null, key, mayBePlain };
    const listening = { ...limits, ...secured, allowedOrigins };
    return new HeartbeatSender({
      heartbeatMs,
      secret,
      // A worker makes the options from the key itself: functions don't travel.
      tls: tls === undefined ? (key === null ? {} : { key }) : this.#clientTls(),
      listening,
      onRefused,
    });
  }

  listen(options: ListenOptions): Promise<Acceptor> {
    const { secret, limits, allowedOrigins, onRefused, encryption } = this.#options;
    const tls = this.#serverTls();
    const security = { secret, limits, allowedOrigins, onRefused, tls, encryption };
    return Acceptor.listen({ ...options, ...security });
  }

  #serverTls(): ServerTls | undefined {
    const { key, cert } = this.#options.tls ?? {};
    return key === undefined || cert === undefined ? undefined : { key, cert };
  }

  /** What is needed to trust a listener: the secret, or who signed its certificate. */
  #clientTls() {
    const { secret, tls } = this.#options;
    if (tls === undefined) {
      return pskClientOptions(tlsKeyOf(secret)) as ConnectionOptions;
    }
    const { ca, servername } = tls;
    return {
      ...(ca === undefined ? {} : { ca: Array.isArray(ca) ? [...ca] : (ca as string | Buffer) }),
      ...(servername === undefined ? {} : { servername }),
    };
  }
}
