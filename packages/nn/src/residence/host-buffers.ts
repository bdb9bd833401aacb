// Host buffers for bytes on their way, reused by size so that a step allocates none.

export class HostBuffers {
  readonly #free = new Map<number, Uint8Array[]>();

  take(byteLength: number): Uint8Array {
    return this.#free.get(byteLength)?.pop() ?? new Uint8Array(byteLength);
  }

  give(buffer: Uint8Array): void {
    const list = this.#free.get(buffer.byteLength);
    if (list === undefined) this.#free.set(buffer.byteLength, [buffer]);
    else list.push(buffer);
  }
}
