// Counts the bytes that a device holds, by what they are for. It counts storages by their elements'
// bytes, padded to a word, and not by the pool's size classes, so formulas can predict the numbers.

/** The purposes of bytes. Every storage has exactly one tag at a time. */
export const MEMORY_TAGS = [
  'parameter', // parameters, or a rank's shard of them
  'gathered', // full parameters, present only around their use
  'gradient',
  'optimizer',
  'activation', // whatever ops made, and need while they run
  'staging', // on the way to or from the host
] as const;
/** One of MEMORY_TAGS: what the bytes of a storage are for. */
export type MemoryTag = (typeof MEMORY_TAGS)[number];

/** Numbers of bytes by tag and in total. */
export type MemoryBytes = Readonly<Record<MemoryTag | 'total', number>>;

/** The live and the peak bytes of one device, by tag. */
export class Ledger {
  readonly #live = emptyBytes();
  readonly #peak = emptyBytes();
  /** The bytes by tag at the peak, which are kept once the total has fallen below it. */
  readonly #mix = emptyBytes();

  /** Adds `bytes` to `tag`. A negative number is bytes that were given back. */
  add(tag: MemoryTag, bytes: number): void {
    if (bytes < 0) {
      this.#keepMix();
    }
    this.#count(tag, bytes);
    this.#count('total', bytes);
  }

  #count(key: MemoryTag | 'total', bytes: number): void {
    this.#live[key] += bytes;
    if (this.#live[key] > this.#peak[key]) {
      this.#peak[key] = this.#live[key];
    }
  }

  /** Moves bytes from one tag to another. The total and its peak do not change. */
  move(from: MemoryTag, to: MemoryTag, bytes: number): void {
    this.#live[from] -= bytes;
    this.#live[to] += bytes;
    if (this.#live[to] > this.#peak[to]) {
      this.#peak[to] = this.#live[to];
    }
  }

  /** Returns the bytes that are held now. */
  live(): MemoryBytes {
    return { ...this.#live };
  }

  /**
   * Returns the most bytes at once since creation or the last resetPeak, for each tag separately.
   */
  peak(): MemoryBytes {
    return { ...this.#peak };
  }

  /** Returns the bytes by tag when the total was last at its peak, to which they add up. */
  atPeak(): MemoryBytes {
    return { ...(this.#isAtPeak ? this.#live : this.#mix) };
  }

  /** Sets live bytes to 0, when the device has given all of them back. Peaks stay. */
  clear(): void {
    this.#keepMix();
    Object.assign(this.#live, emptyBytes());
  }

  /** Sets the peaks to what is live now. */
  resetPeak(): void {
    Object.assign(this.#peak, this.#live);
  }

  get #isAtPeak(): boolean {
    return this.#live.total === this.#peak.total;
  }

  #keepMix(): void {
    if (this.#isAtPeak) {
      Object.assign(this.#mix, this.#live);
    }
  }
}

function emptyBytes(): Record<MemoryTag | 'total', number> {
  const bytes = { total: 0 } as Record<MemoryTag | 'total', number>;
  for (const tag of MEMORY_TAGS) {
    bytes[tag] = 0;
  }
  return bytes;
}
