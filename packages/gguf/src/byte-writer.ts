// Numbers and texts one behind the other, little endian, in an array that grows: the header of a
// large vocabulary is some megabytes in a million small values.

/** What the first array holds. */
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

  /** In UTF-8, its length in bytes before it. */
  string(value: string): void {
    const bytes = this.#encoder.encode(value);
    this.u64(bytes.byteLength);
    this.bytes(bytes);
  }

  /** All that was written; the writer has no further use. */
  take(): Uint8Array {
    return this.#array.subarray(0, this.#length);
  }

  /** Makes room; gives the place of the next bytes. Array and view may be other ones afterwards. */
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
