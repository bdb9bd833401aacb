// Host buffers for bytes on their way, reused by size so that a step allocates none.

interface FreeBuffer {
  readonly bytes: Uint8Array;
  /** Sweeps before it was given back. */
  readonly numSweeps: number;
}

export class HostBuffers {
  readonly #free = new Map<number, FreeBuffer[]>();
  readonly #taken = new Set<Uint8Array>();
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
    let bytes = this.#free.get(byteLength)?.pop()?.bytes;
    if (bytes === undefined) {
      this.#numMade += 1;
      bytes = new Uint8Array(byteLength);
    }
    this.#taken.add(bytes);
    return bytes;
  }

  /**
   * One that was taken, once: given twice, it would have two users.
   * @throws {Error} for any other, which is a fault of this program
   */
  give(bytes: Uint8Array): void {
    const { byteLength } = bytes;
    if (!this.#taken.delete(bytes)) {
      throw new Error(
        `host buffers: expected one that was taken and not given back, got another of ${byteLength} bytes.`,
      );
    }
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
      if (used.length > 0) {
        this.#free.set(byteLength, used);
      } else {
        this.#free.delete(byteLength);
      }
    }
    this.#numSweeps += 1;
  }
}
