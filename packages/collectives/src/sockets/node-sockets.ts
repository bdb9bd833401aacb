// Sockets of Node: opened with the `ws` library, and accepted by an Acceptor.

import { once } from 'node:events';
import { WebSocket } from 'ws';
import { Acceptor } from './acceptor.js';
import { PROOF_MS } from './authenticate.js';
import { MAX_MESSAGE_BYTES } from './limits.js';
import { type ListenSecurity, listenerPolicyOf } from './listen-security.js';
import { NodeSocket } from './node-socket.js';
import {
  type ListenOptions,
  OpenError,
  type OpenedSocket,
  type SocketPlatform,
} from './socket-platform.js';
import { type ClientTls, connectOptionsOf, tlsKeyOf } from './tls-psk.js';

/**
 * The error codes of a host or pod that is not up yet, of a name that is not known yet, and of a
 * listener under a flood.
 */
const EARLY_CODES = new Set([
  'ECONNREFUSED',
  'ECONNRESET',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'ETIMEDOUT',
  'ENOTFOUND',
  'EAI_AGAIN',
]);

/** What an error code means where the key is the job's secret. */
const KEY_HINTS: ReadonlyMap<string, string> = new Map([
  ['EPROTO', ': wrong secret, or the peer listens with another `encryption`'],
  ['Unexpected server response: 426', ': the peer wants TLS, see `encryption`'],
]);

export class NodeSockets implements SocketPlatform {
  /**
   * Short, because a refused connection on a host costs little, and a job starts only when its last
   * rank has come.
   */
  readonly maxRetryMs = 200;
  readonly security: ListenSecurity;
  /** How listeners that are dialed by wss are trusted. */
  readonly clientTls: ClientTls;

  constructor(security: ListenSecurity) {
    const { secret, tls } = security;
    this.security = security;
    this.clientTls =
      tls === undefined ? { pskKey: tlsKeyOf(secret) } : { ca: tls.ca, servername: tls.servername };
  }

  /** Opens a socket, which may take `limitMs` milliseconds. */
  async open(url: string, limitMs = PROOF_MS): Promise<OpenedSocket> {
    // The library takes the options of TLS among its own.
    const options = {
      ...(url.startsWith('wss:') ? connectOptionsOf(this.clientTls) : {}),
      perMessageDeflate: false,
      autoPong: false, // see NodeSocket
      maxPayload: MAX_MESSAGE_BYTES,
      handshakeTimeout: Math.max(1, limitMs),
      skipUTF8Validation: true,
    };
    const socket = new WebSocket(url, options);
    // The NodeSocket is made before the socket is open, because the listener's first message may
    // come in the same packet as the upgrade.
    const wire = new NodeSocket(socket);
    try {
      await once(socket, 'open');
      return { socket: wire, localHost: wire.localHost };
    } catch (error) {
      const { code, message } = error as NodeJS.ErrnoException;
      const isEarly = EARLY_CODES.has(code ?? '') || message.includes('timed out');
      const hint = this.security.tls === undefined ? KEY_HINTS.get(code ?? message) : undefined;
      throw new OpenError(`${code ?? message}${hint ?? ''}`, { isEarly });
    }
  }

  listen(options: ListenOptions): Promise<Acceptor> {
    const { secret, onRefused } = this.security;
    return Acceptor.listen({
      ...options,
      secret,
      policy: listenerPolicyOf(this.security),
      onRefused,
    });
  }
}
