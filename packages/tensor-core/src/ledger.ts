// Counts the bytes a device holds, by what they are for. It counts storages as asked for (element
// bytes padded to a word), not the pool's size classes: these are the numbers formulas predict.

/** What bytes are for. Every storage has exactly one tag at a time. */
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

/** Bytes by tag and in total. */
export type MemoryBytes = Readonly<Record<MemoryTag | 'total', number>>;

/** Live and peak bytes of one device, by tag. */
export class Ledger {
  readonly #live = emptyBytes();
  readonly #peak = emptyBytes();
  /** What was live at the peak, once the total has gone below it. */
  readonly #mix = emptyBytes();

  /** Notes `bytes` (negative: given back) under `tag`. */
  add(tag: MemoryTag, bytes: number): void {
    if (bytes < 0) {
      this.#keepMix();
    }
    for (const key of [tag, 'total'] as const) {
      this.#live[key] += bytes;
      if (this.#live[key] > this.#peak[key]) {
        this.#peak[key] = this.#live[key];
      }
    }
  }

  /** Moves bytes from one tag to another; the total, and so its peak, stays. */
  move(from: MemoryTag, to: MemoryTag, bytes: number): void {
    this.#live[from] -= bytes;
    this.#live[to] += bytes;
    if (this.#live[to] > this.#peak[to]) {
      this.#peak[to] = this.#live[to];
    }
  }

  /** Bytes held now. */
  live(): MemoryBytes {
    return { ...this.#live };
  }

  /** The most held at once since creation or the last resetPeak, each tag on its own. */
  peak(): MemoryBytes {
    return { ...this.#peak };
  }

  /** Bytes by tag when the total was last at its peak, which they add up to. */
  atPeak(): MemoryBytes {
    return { ...(this.#isAtPeak ? this.#live : this.#mix) };
  }

  /** Forgets what is live, when the device gave all of it back; peaks stay. */
  clear(): void {
    this.#keepMix();
    Object.assign(this.#live, emptyBytes());
  }

  /** Starts a new peak at what is live now. */
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
