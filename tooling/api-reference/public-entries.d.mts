export type PublicEntry = {
  /** The package's folder, such as `packages/fsdp`. */
  readonly folder: string;
  /** The specifier, such as `@shardweave/collectives/ws`; that of a page ends with ` (browser)`. */
  readonly name: string;
  /** The absolute path of the entry's source. */
  readonly path: string;
};
export function publicEntries(root: string): readonly PublicEntry[];
