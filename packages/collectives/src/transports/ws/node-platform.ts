// Where a rank runs in Node: sockets and listeners of the `ws` library.

import { once } from 'node:events';
import { WebSocket } from 'ws';
import { Acceptor, MAX_MESSAGE_BYTES } from './acceptor.js';
import { HeartbeatSender } from './heartbeat-sender.js';
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
}

/** A host or a pod that is not up yet, or a name that is not known yet. */
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
  readonly #options: NodePlatformOptions;

  constructor(options: NodePlatformOptions) {
    this.#options = options;
  }

  async open(url: string): Promise<OpenedSocket> {
    const socket = new WebSocket(url, {
      perMessageDeflate: false,
      maxPayload: MAX_MESSAGE_BYTES,
      handshakeTimeout: PROOF_MS,
      skipUTF8Validation: true,
      // Zeros, which the library takes as nothing to do: both ends are ours, no proxy between.
      generateMask: (mask) => mask.fill(0),
    });
    let localHost: string | undefined;
    socket.once('upgrade', (response) => {
      localHost = response.socket.localAddress?.replace(/^::ffff:/, '');
    });
    // Before it is open: the listener's first words come in the same packet as the upgrade.
    const wire = new NodeSocket(socket);
    try {
      await once(socket, 'open');
      return { socket: wire, localHost };
    } catch (error) {
      const { code, message } = error as NodeJS.ErrnoException;
      throw new OpenError(code ?? message, { isEarly: EARLY_CODES.has(code ?? '') });
    }
  }

  startHeartbeats(heartbeatMs: number): HeartbeatSender {
    return new HeartbeatSender({ heartbeatMs, tls: {} });
  }

  listen(options: ListenOptions): Promise<Acceptor> {
    return Acceptor.listen({ ...options, ...this.#options });
  }
}
