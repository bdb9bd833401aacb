// The seam of this package: bytes at rest under string keys. Host memory implements it, and so do
// files in a directory; a browser's origin-private file system would fit it too. It knows nothing
// of tensors.

/**
 * A store of byte arrays for one owner.
 *
 * Ordering: operations on one key take effect in the order of their calls, whichever settles first,
 * so a read sees the write called before it without waiting for it. Operations on different keys
 * run at once, as many as the store's bound allows; the others wait in the store. `commit` includes
 * everything that was called before it and nothing that is called after it.
 *
 * Read-ahead is a `read` that is called early and awaited late. The caller owns its buffers, and so
 * bounds them.
 *
 * Ownership: until the promise settles, the array of a `write` must not change, and that of a
 * `read` must not be touched. Then it is the caller's again, and the store keeps no reference to
 * it. The exception is an array that was given away with its write, which the store may keep as the
 * value.
 *
 * Failure: a rejected `write` or `delete` leaves its key as it was, on disk too, and every other
 * key; a rejected `read` leaves anything in its array. After a failed write `commit` rejects with
 * `INCOMPLETE` until the key is written or deleted, or until its owner withdraws the write and so
 * says that the value before it is the one to keep: what is committed is always whole. A rejected
 * `commit` leaves what was written since readable, and may be called again; until then a next owner
 * finds either the last generation or the one that was to be, as a whole. A process that dies at
 * any time, killed or not, leaves the last generation.
 */
export interface ShardStore {
  /** What the store is, for messages: `host memory`, `disk <directory>`. */
  readonly description: string;

  /**
   * Whether the store keeps no bytes, so that bytes which are only made to be kept need not be
   * made. Default false.
   */
  readonly isDry?: boolean;

  /**
   * Objects that users of the store keep with it, each under a symbol of its own: one per store.
   */
  readonly locals: Map<symbol, unknown>;

  /** The number of commits that the stored values have seen; 0 in a new store. */
  readonly generation: number;

  /**
   * The most bytes that the values have taken, in memory or on disk: each at its largest, and on
   * disk as often as it has had files. Values that were deleted count, too.
   */
  readonly peakBytes: number;

  /** The keys that exist now, in no particular order; pending operations don't count. */
  keys(): readonly string[];

  /** The length of the value that exists now; `undefined` where there is none. */
  byteLength(key: string): number | undefined;

  /** Creates or replaces the value of `key`. */
  write(key: string, bytes: Uint8Array, options?: WriteOptions): Promise<void>;

  /**
   * Fills `into` with the value of `key` from byte `offset` on. Rejects where the value is too
   * short.
   */
  read(key: string, into: Uint8Array, options?: ReadOptions): Promise<void>;

  /** Removes `key`, where it exists. */
  delete(key: string): Promise<void>;

  /**
   * Gives up on those failed writes of `key` that were called before: the key keeps the value that
   * it has, or stays without one, and no longer holds up a commit. Does nothing where no write
   * failed. It needs no room.
   */
  withdraw(key: string): Promise<void>;

  /**
   * Keeps the value of `key` as it is now, whatever is written or deleted later, without copying
   * it. The caller releases it. The method is absent, or gives `undefined`, where the store can't:
   * its values are in memory, or its file system has no second names for files.
   */
  pin?(key: string): Promise<PinnedValue | undefined>;

  /**
   * Makes everything that was written so far the generation that a next owner finds, as a whole.
   */
  commit(): Promise<void>;

  /**
   * Waits for what is pending, then gives up the store. What was not committed is gone, and a store
   * in host memory is gone altogether. Later calls reject with `CLOSED`; closing twice does no more
   * than closing once.
   */
  close(): Promise<void>;
}

/** A value that stays as it is until it is released, even after its store is closed. */
export interface PinnedValue {
  readonly byteLength: number;
  /** Fills `into` from byte `offset` on. Rejects where the value is too short, or damaged. */
  read(into: Uint8Array, options?: ReadOptions): Promise<void>;
  /**
   * Gives its file one more name, which is the caller's; false where that is impossible, as on
   * another device.
   */
  linkAs(path: string): Promise<boolean>;
  /** Releases the value. Idempotent. */
  release(): Promise<void>;
}

/** Whether the store may keep the array that is written. */
export interface WriteOptions {
  /**
   * The array belongs to the store from the call on, which may spare a copy; where the write
   * rejects, it is the caller's again. Default false.
   */
  readonly isGiven?: boolean;
}

/** Where in a value a read begins, in bytes. */
export interface ReadOptions {
  /** The first byte of the value to read. Default 0. */
  readonly offset?: number;
}
