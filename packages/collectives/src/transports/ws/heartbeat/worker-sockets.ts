// The connections of a heartbeat worker as the rank's own thread sees them. That thread makes their
// handshakes and receives what comes over them.

import { HandlerSlot } from '../../../sockets/handler-slot.js';
import { OpenError } from '../../../sockets/socket-platform.js';
import type { ClientTls } from '../../../sockets/tls-psk.js';
import type { WireHandler, WireSocket } from '../../../sockets/wire-socket.js';
import type { HeartbeatCommand, HeartbeatEvent } from './heartbeat-messages.js';

type Post = (command: HeartbeatCommand) => void;

export class WorkerSockets {
  readonly #post: Post;
  readonly #tls: ClientTls;
  readonly #sockets = new Map<number, WorkerSocket>();
  #nextId = 0;
  /** The reason for which the worker has ended, once it has. */
  #ending: string | undefined;

  constructor(post: Post, tls: ClientTls = {}) {
    this.#post = post;
    this.#tls = tls;
  }

  async open(url: string): Promise<WireSocket> {
    if (this.#ending !== undefined) {
      throw new OpenError(`the heartbeat worker has ended: ${this.#ending}`, { isEarly: false });
    }
    const socket = this.#add(this.#nextId++);
    this.#post({ type: 'open', id: socket.id, url, tls: this.#tls });
    await socket.opened;
    return socket;
  }

  /** The connection of that id, which the worker has accepted. */
  accept(id: number, session: Uint8Array | undefined): WireSocket {
    const socket = this.#add(id);
    socket.session = session;
    return socket;
  }

  beat(socket: WireSocket): void {
    this.#post({ type: 'beat', id: (socket as WorkerSocket).id });
  }

  /** Takes what the worker reports of one connection. */
  onEvent(event: Extract<HeartbeatEvent, { readonly id: number }>): void {
    this.#sockets.get(event.id)?.onEvent(event);
    if (event.type === 'closed') {
      this.#sockets.delete(event.id);
    }
  }

  /** Called when the worker has ended, and all connections with it. */
  onEnd(reason: string): void {
    this.#ending = reason;
    for (const id of [...this.#sockets.keys()]) {
      this.onEvent({ type: 'closed', id, code: 1006, reason });
    }
  }

  #add(id: number): WorkerSocket {
    const socket = new WorkerSocket(id, this.#post);
    this.#sockets.set(id, socket);
    return socket;
  }
}

class WorkerSocket implements WireSocket {
  readonly id: number;
  readonly opened: Promise<void>;
  readonly unsentBytes = 0;
  session: Uint8Array | undefined;
  readonly #post: Post;
  readonly #slot = new HandlerSlot();
  #onOpen: () => void = () => {};
  #onRefused: (error: Error) => void = () => {};

  constructor(id: number, post: Post) {
    this.id = id;
    this.#post = post;
    this.opened = new Promise((resolve, reject) => {
      this.#onOpen = resolve;
      this.#onRefused = reject;
    });
    this.opened.catch(() => {}); // nobody asks when an accepted socket was opened
  }

  onEvent(event: Extract<HeartbeatEvent, { readonly id: number }>): void {
    if (event.type === 'open') {
      this.session = event.session;
      this.#onOpen();
    } else if (event.type === 'binary') {
      this.#slot.onBinary(event.bytes);
    } else if (event.type === 'closed') {
      // This counts where the socket was not open yet. Its listener has answered before, so it may
      // come back.
      this.#onRefused(new OpenError(event.reason, { isEarly: true }));
      this.#slot.onClose(event.code, event.reason);
    }
  }

  trust(): void {
    this.#post({ type: 'trust', id: this.id });
  }

  setHandler(handler: WireHandler | undefined): void {
    this.#slot.setHandler(handler);
  }

  send(bytes: Uint8Array): void {
    this.#post({ type: 'send', id: this.id, bytes });
  }

  sendText(): void {
    throw new Error('a heartbeat connection has no text');
  }

  batch(body: () => void): void {
    body();
  }

  close(code: number, reason: string): void {
    this.#post({ type: 'close', id: this.id, code, reason });
  }

  terminate(): void {
    this.#post({ type: 'close', id: this.id, reason: '' });
  }
}
