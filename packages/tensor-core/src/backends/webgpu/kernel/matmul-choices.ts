// The matmul tile for each class of products on this device. All tiles except those of matrix units
// sum in the same order, so a choice changes the time and, unless a compiler reorders sums, no
// value. The numeric class has a hash of all choices.

import { fnv1a } from '@shardweave/dtypes';

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

  /** Eight digits, which are equal for equal choices. */
  get hash(): string {
    return fnv1a(JSON.stringify(this.export())).toString(16).padStart(8, '0');
  }

  /** Takes the choices of a table in place of all before. */
  import(table: MatmulChoiceTable): void {
    this.#table.clear();
    for (const [shapeClass, tile] of Object.entries(table)) {
      this.#table.set(shapeClass, tile);
    }
  }

  export(): MatmulChoiceTable {
    return Object.fromEntries([...this.#table].sort(([a], [b]) => (a < b ? -1 : 1)));
  }
}
