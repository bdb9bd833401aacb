// Host buffers for bytes on their way, reused by size so that a step allocates none.

interface FreeBuffer {
  readonly bytes: Uint8Array;
  /** Sweeps before it was given back. */
  readonly numSweeps: number;
}

export class HostBuffers {
  readonly #free = new Map<number, FreeBuffer[]>();
  #numMade = 0;
  #takenBytes = 0;
  #peakTakenBytes = 0;
  #numSweeps = 0;

  /** Buffers made so far: it stands still when a step finds all of its own. */
  get numMade(): number {
    return this.#numMade;
  }

  /** Bytes taken and not given back. */
  get takenBytes(): number {
    return this.#takenBytes;
  }

  /** The most at once since creation. */
  get peakTakenBytes(): number {
    return this.#peakTakenBytes;
  }

  take(byteLength: number): Uint8Array {
    this.#takenBytes += byteLength;
    this.#peakTakenBytes = Math.max(this.#peakTakenBytes, this.#takenBytes);
    const kept = this.#free.get(byteLength)?.pop();
    if (kept !== undefined) return kept.bytes;
    this.#numMade += 1;
    return new Uint8Array(byteLength);
  }

  /** One that was taken, once. */
  give(bytes: Uint8Array): void {
    const { byteLength } = bytes;
    this.#takenBytes -= byteLength;
    const list = this.#free.get(byteLength) ?? [];
    this.#free.set(byteLength, list);
    list.push({ bytes, numSweeps: this.#numSweeps });
  }

  /** Lets go of what has lain unused since the sweep before the last: sizes that don't come again. */
  sweep(): void {
    const first = this.#numSweeps - 1;
    for (const [byteLength, list] of this.#free) {
      const used = list.filter(({ numSweeps }) => numSweeps >= first);
      if (used.length > 0) this.#free.set(byteLength, used);
      else this.#free.delete(byteLength);
    }
    this.#numSweeps += 1;
  }
}
