// The bytes that the values of a store have taken at most. Each counts at its largest, and so does
// each file that it has had, so that the sum does not depend on the order of writes.

export class PeakSizes {
  readonly #values = new Map<string, { readonly byteLength: number; readonly numFiles: number }>();

  get bytes(): number {
    const values = [...this.#values.values()];
    return values.reduce((sum, { byteLength, numFiles }) => sum + byteLength * numFiles, 0);
  }

  /** Counts a value that was written to the last of `numFiles` files. */
  add(key: string, byteLength: number, numFiles = 1): void {
    const most = this.#values.get(key);
    this.#values.set(key, {
      byteLength: Math.max(byteLength, most?.byteLength ?? 0),
      numFiles: Math.max(numFiles, most?.numFiles ?? 0),
    });
  }
}
