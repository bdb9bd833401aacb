// A socket that gets its incoming events from a test, and keeps how it was ended.

import type { WireHandler, WireSocket } from '../../src/sockets/wire-socket.js';

/** This socket gets its incoming events from the test. */
export class ScriptedSocket implements WireSocket {
  readonly unsentBytes = 0;
  handler: WireHandler | undefined;
  hasEnded = false;
  closed = '';

  setHandler(handler: WireHandler | undefined): void {
    this.handler = handler;
  }

  trust(): void {}
  send(): void {}
  sendText(): void {}
  batch(body: () => void): void {
    body();
  }
  close(code: number, reason: string): void {
    this.closed = `${code} ${reason}`;
  }
  terminate(): void {
    this.hasEnded = true;
    this.handler?.onClose(1006, 'dropped');
  }
}
