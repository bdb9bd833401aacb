// What flats ask of the store that they rest in. `ShardStore` of @shardweave/shard-store is such a
// store, and its comment states ordering, ownership and failure. This is the part of it that flats
// use, so that this package does not depend on that one.

/**
 * A store of bytes by key, as far as flats need one: values are replaced whole and read by ranges.
 */
export interface ByteStore {
  /** Whether it keeps no bytes, so that nobody needs to make or convert them. Default false. */
  readonly isDry?: boolean;
  /** Objects that live as long as the store, one for each symbol: StoreUse keeps itself here. */
  readonly locals: Map<symbol, unknown>;
  /** The keys that are there now. */
  keys(): readonly string[];
  /** Length of the value that is there now; undefined where none is. */
  byteLength(key: string): number | undefined;
  /**
   * Replaces or creates a value. Where it rejects, the store keeps the value from before.
   * @param options.isGiven whether the store may keep the array itself and need not copy it
   */
  write(key: string, bytes: Uint8Array, options?: { readonly isGiven?: boolean }): Promise<void>;
  /** Fills `into` from byte `offset` of the value on. */
  read(key: string, into: Uint8Array, options?: { readonly offset?: number }): Promise<void>;
  /** Removes a key, if it is there. */
  delete(key: string): Promise<void>;
  /** Forgets a write that failed, so that commits no longer reject; the value before it stays. */
  withdraw(key: string): Promise<void>;
  /** Keeps a value as it is until it is released. Undefined or absent where the store can't. */
  pin?(key: string): Promise<PinnedBytes | undefined>;
  /** A later process finds all that was written before the last commit, and nothing of the rest. */
  commit(): Promise<void>;
}

/** A value that stays as it is, in a file. */
export interface PinnedBytes {
  readonly byteLength: number;
  read(into: Uint8Array, options?: { readonly offset?: number }): Promise<void>;
  linkAs(path: string): Promise<boolean>;
  release(): Promise<void>;
}
