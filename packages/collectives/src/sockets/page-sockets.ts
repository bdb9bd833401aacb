// Sockets of a page: native WebSockets that it opens. Nothing can connect to a page.

import { MAX_MESSAGE_BYTES } from './limits.js';
import { PageLooks } from './page-looks.js';
import { PageSocket } from './page-socket.js';
import { OpenError, type OpenedSocket, type SocketPlatform } from './socket-platform.js';

export class PageSockets implements SocketPlatform {
  /**
   * Long, because a page can't tell a refusal from a listener that isn't there yet, so it tries
   * gently.
   */
  readonly maxRetryMs = 1000;
  /** Decides when its sockets look at what has left them. */
  readonly looks = new PageLooks();

  async open(url: string): Promise<OpenedSocket> {
    let native: WebSocket;
    try {
      native = new WebSocket(url);
    } catch (error) {
      // A page of https may only open wss, for example.
      throw new OpenError((error as Error).message, { isEarly: false });
    }
    const socket = new PageSocket(native, MAX_MESSAGE_BYTES, this.looks);
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
}
