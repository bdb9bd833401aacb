// Host buffers for bytes on their way, which are reused so that a step allocates none. A buffer is
// a span of a larger block. It is cut from where it fits best, and joined with its neighbors when
// it comes back, so that the sizes of backward and of the optimizer's step share the same memory.
// Before a block is made, unused blocks are released until all blocks together are no larger than
// what was taken at once. They exceed that only where spans in use leave gaps between them.

/** Offsets and sizes are multiples of this, so that views of any element type can begin there. */
const STEP_BYTES = 8;

interface Span {
  readonly start: number;
  readonly end: number;
}

interface Block {
  readonly bytes: Uint8Array;
  /** Free spans in ascending order, which never touch: neighbors are joined. */
  gaps: readonly Span[];
  /** The number of sweeps when it last came out of use. */
  numSweeps: number;
}

/**
 * A pool of host buffers for bytes on their way between a store and a device. A steady state
 * allocates none.
 */
export class HostBuffers {
  /** A block that comes out of use moves to the end, so the first ones are unused the longest. */
  readonly #blocks = new Set<Block>();
  readonly #taken = new Map<Uint8Array, Block>();
  #numMade = 0;
  #heldBytes = 0;
  #takenBytes = 0;
  #peakTakenBytes = 0;
  #numSweeps = 0;
  /**
   * The buffer for everything in a dry run, where nothing is kept. An array for each use would keep
   * the garbage collector busy.
   */
  #nowhere: Block | undefined;

  /** With `isDry` nobody reads what is written into a buffer, so all buffers are the same bytes. */
  constructor({ isDry = false }: { readonly isDry?: boolean | undefined } = {}) {
    this.#nowhere = isDry ? this.#blockOf(0) : undefined;
  }

  /** Blocks made so far. It stands still once a step finds all of its buffers in the pool. */
  get numMade(): number {
    return this.#numMade;
  }

  /** Bytes of all blocks, free or not. */
  get heldBytes(): number {
    return this.#heldBytes;
  }

  /** Bytes taken and not given back; each buffer counts as the next multiple of 8. */
  get takenBytes(): number {
    return this.#takenBytes;
  }

  /** The most bytes that were taken at once. */
  get peakTakenBytes(): number {
    return this.#peakTakenBytes;
  }

  /** Takes a buffer, which holds whatever was in it before. */
  take(byteLength: number): Uint8Array {
    const size = wholeSteps(byteLength);
    this.#takenBytes += size;
    this.#peakTakenBytes = Math.max(this.#peakTakenBytes, this.#takenBytes);
    if (this.#nowhere !== undefined) {
      if (this.#nowhere.bytes.byteLength < size) {
        this.#nowhere = this.#blockOf(size);
      }
      const bytes = this.#nowhere.bytes.subarray(0, byteLength);
      this.#taken.set(bytes, this.#nowhere);
      return bytes;
    }
    const { block, gap } = this.#bestGap(size) ?? this.#make(size);
    const rest = { start: gap.start + size, end: gap.end };
    block.gaps = block.gaps.flatMap((other) => (other === gap ? [rest] : [other])).filter(hasBytes);
    const bytes = block.bytes.subarray(gap.start, gap.start + byteLength);
    this.#taken.set(bytes, block);
    return bytes;
  }

  /**
   * Gives a buffer back. It must be given back only once, since otherwise it would get two users.
   * @throws {Error} for a buffer that was not taken, which is a fault of this program
   */
  give(bytes: Uint8Array): void {
    const { byteLength, byteOffset } = bytes;
    const block = this.#taken.get(bytes);
    if (block === undefined) {
      throw new Error(
        `host buffers: expected one that was taken and not given back, got another of ${byteLength} bytes.`,
      );
    }
    this.#taken.delete(bytes);
    const size = wholeSteps(byteLength);
    this.#takenBytes -= size;
    if (this.#nowhere !== undefined) {
      return;
    }
    block.gaps = mergeSpans([...block.gaps, { start: byteOffset, end: byteOffset + size }]);
    block.numSweeps = this.#numSweeps;
    if (isFree(block)) {
      this.#blocks.delete(block);
      this.#blocks.add(block);
    }
  }

  /** Releases blocks that have been unused since the sweep before the last. */
  sweep(): void {
    for (const block of this.#blocks) {
      if (isFree(block) && block.numSweeps < this.#numSweeps - 1) {
        this.#drop(block);
      }
    }
    this.#numSweeps += 1;
  }

  /**
   * The smallest free span that has room. Of equal ones it is that of the latest block, so that
   * others can be released.
   */
  #bestGap(size: number): { readonly block: Block; readonly gap: Span } | undefined {
    let best: { readonly block: Block; readonly gap: Span } | undefined;
    for (const block of this.#blocks) {
      for (const gap of block.gaps) {
        if (lengthOf(gap) >= size && (best === undefined || lengthOf(gap) <= lengthOf(best.gap))) {
          best = { block, gap };
        }
      }
    }
    return best;
  }

  #make(size: number): { readonly block: Block; readonly gap: Span } {
    for (const block of this.#blocks) {
      if (this.#heldBytes + size <= this.#peakTakenBytes) {
        break;
      }
      if (isFree(block)) {
        this.#drop(block);
      }
    }
    const block = this.#blockOf(size);
    this.#blocks.add(block);
    this.#heldBytes += size;
    this.#numMade += 1;
    return { block, gap: block.gaps[0]! };
  }

  #blockOf(size: number): Block {
    const gaps = [{ start: 0, end: size }];
    return { bytes: new Uint8Array(size), gaps, numSweeps: this.#numSweeps };
  }

  #drop(block: Block): void {
    this.#blocks.delete(block);
    this.#heldBytes -= block.bytes.byteLength;
  }
}

function wholeSteps(byteLength: number): number {
  return Math.max(1, Math.ceil(byteLength / STEP_BYTES)) * STEP_BYTES;
}

function lengthOf({ start, end }: Span): number {
  return end - start;
}

function hasBytes(span: Span): boolean {
  return lengthOf(span) > 0;
}

function isFree({ bytes, gaps }: Block): boolean {
  return gaps.length === 1 && lengthOf(gaps[0]!) === bytes.byteLength;
}

function mergeSpans(spans: readonly Span[]): Span[] {
  const all: Span[] = [];
  for (const span of spans.toSorted((a, b) => a.start - b.start)) {
    const last = all.at(-1);
    if (last?.end === span.start) {
      all[all.length - 1] = { start: last.start, end: span.end };
    } else {
      all.push(span);
    }
  }
  return all;
}
