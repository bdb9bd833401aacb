// One WebAssembly memory of all ranks of a job, from which `allocate` gives: sums run in it without
// copies, and any rank can read any place of it without an announcement. Each rank takes pages for
// itself, because growing is atomic, and divides them alone. After growth `buffer` is another
// object, though the bytes are where they were.

/** 4 GiB, the most that a wasm32 memory can have. Beyond that, allocate gives shared buffers. */
const MAX_PAGES = 65_536;

const PAGE_BYTES = 64 * 1024;

/** The least number of bytes that a rank takes in new pages at a time. */
const GROWTH_BYTES = 2 ** 20;

/** Blocks are aligned to cache lines, so that no two ranks' blocks share one. */
const GRAIN_BYTES = 64;

interface Block {
  start: number;
  end: number;
  /** Whether the block was never given to anyone, so that its bytes are zero. */
  isZero: boolean;
}

/**
 * Makes the memory; undefined where this platform has none of that kind, because wasm has no
 * threads there or no address space is left.
 */
export function createHeapMemory(): WebAssembly.Memory | undefined {
  try {
    return new WebAssembly.Memory({ initial: 1, maximum: MAX_PAGES, shared: true });
  } catch {
    return undefined;
  }
}

/** One rank's part of the heap. */
export class SharedHeap {
  readonly memory: WebAssembly.Memory;
  /** The buffers that `memory.buffer` has been, as far as views of them were made here. */
  readonly #buffers = new WeakSet<ArrayBufferLike>();
  /** The free blocks, by address; no two of them touch. */
  readonly #free: Block[] = [];
  /** The end of each block that was given, by its start. */
  readonly #given = new Map<number, number>();

  constructor(memory: WebAssembly.Memory) {
    this.memory = memory;
  }

  /** Whether `buffer` is that of a view that was made here. */
  holds(buffer: ArrayBufferLike): boolean {
    return this.#buffers.has(buffer);
  }

  /** Zeroed bytes; undefined where the memory can't grow enough. */
  allocate(byteLength: number): Uint8Array | undefined {
    const size = Math.max(1, Math.ceil(byteLength / GRAIN_BYTES)) * GRAIN_BYTES;
    const block = this.#free.find(({ start, end }) => end - start >= size) ?? this.#grow(size);
    if (block === undefined) {
      return undefined;
    }
    const { start, isZero } = block;
    block.start += size;
    if (block.start === block.end) {
      this.#free.splice(this.#free.indexOf(block), 1);
    }
    this.#given.set(start, start + size);
    const bytes = this.view(start, byteLength);
    if (!isZero) {
      bytes.fill(0);
    }
    return bytes;
  }

  /** Takes back what `allocate` gave. False for anything else. */
  release(bytes: Uint8Array): boolean {
    const start = bytes.byteOffset;
    const end = this.#given.get(start);
    if (!this.holds(bytes.buffer) || end === undefined) {
      return false;
    }
    this.#given.delete(start);
    this.#put({ start, end, isZero: false });
    return true;
  }

  /** A view of bytes that may belong to any rank. */
  view(offset: number, byteLength: number): Uint8Array {
    if (offset + byteLength > this.memory.buffer.byteLength) {
      this.memory.grow(0); // another rank has grown it, and this thread has not looked since
    }
    const { buffer } = this.memory;
    this.#buffers.add(buffer);
    return new Uint8Array(buffer, offset, byteLength);
  }

  #grow(size: number): Block | undefined {
    const pages = Math.ceil(Math.max(size, GROWTH_BYTES) / PAGE_BYTES);
    try {
      const start = this.memory.grow(pages) * PAGE_BYTES;
      return this.#put({ start, end: start + pages * PAGE_BYTES, isZero: true });
    } catch {
      return undefined;
    }
  }

  /** Joins a free block with its free neighbors; returns the block that it is part of then. */
  #put(block: Block): Block {
    const index = this.#free.findIndex(({ start }) => start > block.start);
    const at = index < 0 ? this.#free.length : index;
    this.#free.splice(at, 0, block);
    this.#join(at);
    return at > 0 && this.#join(at - 1) ? this.#free[at - 1]! : this.#free[at]!;
  }

  /** Joins the block at `index` with the one after it, where they touch. */
  #join(index: number): boolean {
    const [left, right] = [this.#free[index]!, this.#free[index + 1]];
    if (right === undefined || left.end !== right.start) {
      return false;
    }
    left.end = right.end;
    left.isZero &&= right.isZero;
    this.#free.splice(index + 1, 1);
    return true;
  }
}
