// The linear memory of a CPU device, and typed views of all of it. A memory that has grown has a
// new buffer, so the views are made again, and no other code may keep them.

const PAGE_BYTES = 65536;

export class WasmMemory {
  readonly memory: WebAssembly.Memory;
  readonly maxBytes: number;
  #bytes: Uint8Array;
  #words: Int32Array;
  #doubles: Float64Array;

  /**
   * @throws {RangeError} where the engine cannot reserve `maxBytes`.
   */
  constructor(options: { initialBytes: number; maxBytes: number; isShared: boolean }) {
    const initial = Math.ceil(options.initialBytes / PAGE_BYTES);
    const maximum = Math.max(initial, Math.floor(options.maxBytes / PAGE_BYTES));
    this.memory = new WebAssembly.Memory({ initial, maximum, shared: options.isShared });
    this.maxBytes = maximum * PAGE_BYTES;
    this.#bytes = new Uint8Array(this.memory.buffer);
    this.#words = new Int32Array(this.memory.buffer);
    this.#doubles = new Float64Array(this.memory.buffer);
  }

  get byteLength(): number {
    return this.#bytes.byteLength;
  }

  get bytes(): Uint8Array {
    return this.#bytes;
  }

  get words(): Int32Array {
    return this.#words;
  }

  get doubles(): Float64Array {
    return this.#doubles;
  }

  /** Grows to at least `byteLength`. Returns false where the limit or the machine forbids that. */
  growTo(byteLength: number): boolean {
    const pages = Math.ceil((byteLength - this.byteLength) / PAGE_BYTES);
    if (pages <= 0) {
      return true;
    }
    if (this.byteLength + pages * PAGE_BYTES > this.maxBytes) {
      return false;
    }
    try {
      this.memory.grow(pages);
    } catch {
      return false;
    }
    this.#bytes = new Uint8Array(this.memory.buffer);
    this.#words = new Int32Array(this.memory.buffer);
    this.#doubles = new Float64Array(this.memory.buffer);
    return true;
  }
}
