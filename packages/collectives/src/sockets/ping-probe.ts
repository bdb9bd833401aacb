// Asks by a ping whether the peer of a connection still answers.

import type { WebSocket } from 'ws';

export class PingProbe {
  readonly #socket: WebSocket;
  #answering: Promise<boolean> | undefined;
  #onPong: (() => void) | undefined;

  constructor(socket: WebSocket) {
    this.#socket = socket;
  }

  /** Calls that come while an answer is awaited get the same one. */
  answers(limitMs: number): Promise<boolean> {
    this.#answering ??= this.#ask(limitMs).finally(() => {
      this.#answering = undefined;
    });
    return this.#answering;
  }

  /** Takes the peer's answer. */
  onPong(): void {
    this.#onPong?.();
  }

  #ask(limitMs: number): Promise<boolean> {
    return new Promise((resolve) => {
      const finish = (answers: boolean) => {
        clearTimeout(timer);
        this.#onPong = undefined;
        resolve(answers);
      };
      const timer = setTimeout(() => finish(false), limitMs);
      this.#onPong = () => finish(true);
      this.#socket.once('close', () => finish(false));
      this.#socket.ping();
    });
  }
}
