// Where a rank runs in a page: native WebSockets, and nobody can be called.

import { MAX_MESSAGE_BYTES } from '../../sockets/limits.js';
import { PageLooks } from '../../sockets/page-looks.js';
import { PageSocket } from '../../sockets/page-socket.js';
import { PageHeartbeatSender } from './heartbeat/page-heartbeat-sender.js';
import {
  type HeartbeatSender,
  OpenError,
  type OpenedSocket,
  type WsPlatform,
} from './ws-platform.js';

export class PagePlatform implements WsPlatform {
  /** A page can't tell a refusal from a listener that isn't there yet: it knocks gently. */
  readonly maxRetryMs = 1000;

  readonly #heartbeat: 'worker' | 'link' | undefined;
  readonly #looks = new PageLooks();

  constructor(heartbeat?: 'worker' | 'link') {
    this.#heartbeat = heartbeat;
  }

  async open(url: string): Promise<OpenedSocket> {
    let native: WebSocket;
    try {
      native = new WebSocket(url);
    } catch (error) {
      // A page of https may only open wss, for example.
      throw new OpenError((error as Error).message, { isEarly: false });
    }
    const socket = new PageSocket(native, MAX_MESSAGE_BYTES, this.#looks);
    await new Promise<void>((resolve, reject) => {
      native.addEventListener('open', () => resolve(), { once: true });
      // A page isn't told why, so it tries again until the time to join is over.
      const fail = () => {
        const why = 'the connection could not be opened: nobody listens, or refuses this origin';
        reject(new OpenError(why, { isEarly: true }));
      };
      native.addEventListener('error', fail, { once: true });
    });
    return { socket, localHost: undefined };
  }

  async startHeartbeats(heartbeatMs: number): Promise<HeartbeatSender | undefined> {
    return this.#heartbeat === 'link'
      ? undefined
      : PageHeartbeatSender.start(heartbeatMs, this.#looks);
  }
}
