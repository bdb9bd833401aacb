// Writes numbers and texts one after another, little-endian, into an array that grows. The header
// of a large vocabulary is some megabytes in a million small values.

/** The size of the first array. */
const START_BYTES = 4096;

export class ByteWriter {
  #array = new Uint8Array(START_BYTES);
  #view = new DataView(this.#array.buffer);
  #length = 0;
  readonly #encoder = new TextEncoder();

  u8(value: number): void {
    const at = this.#place(1);
    this.#view.setUint8(at, value);
  }

  u32(value: number): void {
    const at = this.#place(4);
    this.#view.setUint32(at, value, true);
  }

  i32(value: number): void {
    const at = this.#place(4);
    this.#view.setInt32(at, value, true);
  }

  f32(value: number): void {
    const at = this.#place(4);
    this.#view.setFloat32(at, value, true);
  }

  u64(value: number): void {
    const at = this.#place(8);
    this.#view.setBigUint64(at, BigInt(value), true);
  }

  bytes(value: Uint8Array): void {
    const at = this.#place(value.byteLength);
    this.#array.set(value, at);
  }

  /** Writes a text in UTF-8, with its length in bytes before it. */
  string(value: string): void {
    const bytes = this.#encoder.encode(value);
    this.u64(bytes.byteLength);
    this.bytes(bytes);
  }

  /** Everything that was written. The writer cannot be used afterwards. */
  take(): Uint8Array {
    return this.#array.subarray(0, this.#length);
  }

  /**
   * Makes room and returns the place of the next bytes. The array and the view may be other ones
   * afterwards.
   */
  #place(byteLength: number): number {
    const at = this.#length;
    this.#length += byteLength;
    if (this.#length > this.#array.byteLength) {
      const larger = new Uint8Array(Math.max(this.#length, 2 * this.#array.byteLength));
      larger.set(this.#array);
      this.#array = larger;
      this.#view = new DataView(larger.buffer);
    }
    return at;
  }
}
