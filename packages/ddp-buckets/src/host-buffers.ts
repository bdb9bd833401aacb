// Host buffers for gradients on their way, reused by size so that a step allocates none.

export class HostBuffers {
  readonly #free = new Map<number, Uint8Array[]>();
  #numMade = 0;

  /** Buffers made since it was created. */
  get numMade(): number {
    return this.#numMade;
  }

  take(byteLength: number): Uint8Array {
    const reused = this.#free.get(byteLength)?.pop();
    if (reused !== undefined) return reused;
    this.#numMade += 1;
    return new Uint8Array(byteLength);
  }

  give(buffer: Uint8Array): void {
    const list = this.#free.get(buffer.byteLength);
    if (list === undefined) this.#free.set(buffer.byteLength, [buffer]);
    else list.push(buffer);
  }

  /** Forgets what is free: sizes have changed. */
  clear(): void {
    this.#free.clear();
  }
}
