// What is asked of a store of bytes by those who keep flats in it. `ShardStore` of
// @shardweave/shard-store is one, whose comment states ordering, ownership and failure; here is
// only the part in use, so that this package needs no store.

/**
 * A store of bytes by key, as far as flats need one: values are replaced whole and read by ranges.
 */
export interface ByteStore {
  /** It keeps no bytes: what is computed on the way to it or from it need not be. Default false. */
  readonly isDry?: boolean;
  /** What those who use the store keep with it, each by a symbol of its own: one of it a store. */
  readonly locals: Map<symbol, unknown>;
  /** The keys that are there now. */
  keys(): readonly string[];
  /** Length of the value that is there now; undefined where none is. */
  byteLength(key: string): number | undefined;
  /**
   * Replaces or creates a value; where it rejects the store has what it had.
   * @param options.isGiven the array is the store's from here on
   */
  write(key: string, bytes: Uint8Array, options?: { readonly isGiven?: boolean }): Promise<void>;
  /** Fills `into` from byte `offset` of the value on. */
  read(key: string, into: Uint8Array, options?: { readonly offset?: number }): Promise<void>;
  /** Removes a key; nothing where there is none. */
  delete(key: string): Promise<void>;
  /** Gives up on a write that failed: the value before it, or none, holds up no commit. */
  withdraw(key: string): Promise<void>;
  /** Keeps a value as it is until it is released; undefined, or absent, where the store can't. */
  pin?(key: string): Promise<PinnedBytes | undefined>;
  /** Makes all that was written what a next process finds, as a whole. */
  commit(): Promise<void>;
}

/** A value that stays as it is, in a file. */
export interface PinnedBytes {
  readonly byteLength: number;
  read(into: Uint8Array, options?: { readonly offset?: number }): Promise<void>;
  linkAs(path: string): Promise<boolean>;
  release(): Promise<void>;
}
