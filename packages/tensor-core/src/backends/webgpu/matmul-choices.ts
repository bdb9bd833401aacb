// The matmul tile for each class of products on this device. All tiles except those of matrix units
// sum in the same order, so a choice changes the time and not the values. Classes that use matrix
// units are named in the numeric class. Rank 0 can choose for all ranks.

/** The name of a tile for each class of products (transposes, dtypes, size), as plain JSON. */
export type MatmulChoiceTable = Readonly<Record<string, string>>;

export class MatmulChoices {
  readonly #table = new Map<string, string>();

  /** Whether nothing was chosen yet. */
  get isEmpty(): boolean {
    return this.#table.size === 0;
  }

  get(shapeClass: string): string | undefined {
    return this.#table.get(shapeClass);
  }

  set(shapeClass: string, tile: string): void {
    this.#table.set(shapeClass, tile);
  }

  import(table: MatmulChoiceTable): void {
    for (const [shapeClass, tile] of Object.entries(table)) {
      this.#table.set(shapeClass, tile);
    }
  }

  export(): MatmulChoiceTable {
    return Object.fromEntries([...this.#table].sort(([a], [b]) => (a < b ? -1 : 1)));
  }
}
