// Memory that all ranks of a job can read: what this rank registered, under numbers by which its
// peers know it, and what each peer announced of its own. A buffer is announced through a port, and
// a message that lies in it comes through a ring, so the message may come first.

/** The buffers that this rank has registered. */
export class OwnBuffers {
  readonly #ids = new Map<ArrayBufferLike, number>();
  #next = 1;

  /** A number for `buffer`; undefined where it has one already. */
  add(buffer: SharedArrayBuffer): number | undefined {
    if (this.#ids.has(buffer)) {
      return undefined;
    }
    const id = this.#next++;
    this.#ids.set(buffer, id);
    return id;
  }

  /** Forgets a buffer; returns the number that it had. */
  remove(buffer: ArrayBufferLike): number | undefined {
    const id = this.#ids.get(buffer);
    this.#ids.delete(buffer);
    return id;
  }

  idOf(buffer: ArrayBufferLike): number | undefined {
    return this.#ids.get(buffer);
  }

  clear(): void {
    this.#ids.clear();
  }
}

/** The buffers that one peer has registered. */
export class PeerBuffers {
  readonly #buffers = new Map<number, SharedArrayBuffer>();
  readonly #awaited = new Map<number, ((buffer: SharedArrayBuffer) => void)[]>();

  add(id: number, buffer: SharedArrayBuffer): void {
    this.#buffers.set(id, buffer);
    for (const resolve of this.#awaited.get(id) ?? []) {
      resolve(buffer);
    }
    this.#awaited.delete(id);
  }

  remove(id: number): void {
    this.#buffers.delete(id);
  }

  /**
   * The buffer of a number; a promise where it has not been announced yet. The promise stays
   * pending if the peer ends first.
   */
  get(id: number): SharedArrayBuffer | Promise<SharedArrayBuffer> {
    const known = this.#buffers.get(id);
    if (known !== undefined) {
      return known;
    }
    return new Promise((resolve) => {
      const list = this.#awaited.get(id) ?? [];
      this.#awaited.set(id, list);
      list.push(resolve);
    });
  }

  clear(): void {
    this.#buffers.clear();
    this.#awaited.clear();
  }
}
