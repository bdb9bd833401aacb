// The seam of this package: bytes at rest under string keys. Implemented by host memory and by
// files in a directory; a browser's origin-private file system fits it too. It knows no tensors.

/**
 * A store of byte arrays for one owner.
 *
 * Ordering: operations on one key take effect in the order of their calls, whatever settles when,
 * so a read sees the write called before it without waiting for it. Operations on different keys
 * run at once, as many as the store's bound allows; the others wait in it.
 * `commit` takes in all that was called before it and nothing that is called after it.
 *
 * Read-ahead is a `read` that is called early and awaited late; the caller owns its buffers, and so
 * bounds them.
 *
 * Ownership: the array of a `write` must not change, and that of a `read` not be touched, until the
 * promise settles. Then it is the caller's again, and the store keeps no reference to it, but for
 * an array that was given away with its write: the store may keep it as the value.
 *
 * Failure: a rejected `write` or `delete` leaves the key as it was, also on disk, and every other
 * key; a rejected `read` leaves anything in its array. After a failed write `commit` rejects with
 * `INCOMPLETE` until the key is written or deleted, or its owner withdraws the write and so says
 * that the value before it is the one to keep: what is committed is always whole. A rejected
 * `commit` leaves what was written since readable, and may be called again; until then a next owner
 * finds the last generation or the one that was to be, either as a whole. A process that dies at
 * any time, killed or not, leaves the last generation.
 */
export interface ShardStore {
  /** What it is, for messages: `host memory`, `disk <directory>`. */
  readonly description: string;

  /** It keeps no bytes, so what is only made to be kept need not be made. Default false. */
  readonly isDry?: boolean;

  /** What those who use the store keep with it, each by a symbol of its own: one of it a store. */
  readonly locals: Map<symbol, unknown>;

  /** Number of commits that what is stored has seen; 0 in a new store. */
  readonly generation: number;

  /** The keys that are there now, in no particular order; pending operations are not in it. */
  keys(): readonly string[];

  /** Length of the value that is there now; `undefined` where none is. */
  byteLength(key: string): number | undefined;

  /** Replaces or creates the value of `key`. */
  write(key: string, bytes: Uint8Array, options?: WriteOptions): Promise<void>;

  /** Fills `into` with the value of `key` from byte `offset` on. Rejects where it is too short. */
  read(key: string, into: Uint8Array, options?: ReadOptions): Promise<void>;

  /** Removes `key`; nothing where there is none. */
  delete(key: string): Promise<void>;

  /**
   * Gives up on the failed writes of `key` that were called before: the key keeps the value that it
   * has, or stays without one, and holds up no commit. Nothing where none failed. It needs no room.
   */
  withdraw(key: string): Promise<void>;

  /**
   * Keeps the value of `key` as it is now, whatever is written or deleted later, without a copy of
   * it. The caller releases it. Absent, or `undefined`, where the store can't: its values are in
   * memory, or its file system has no second names for files.
   */
  pin?(key: string): Promise<PinnedValue | undefined>;

  /** Makes all that was written so far the generation that a next owner finds, as a whole. */
  commit(): Promise<void>;

  /**
   * Waits for what is pending, then gives up the store. What was not committed is gone; what lives
   * in host memory is gone altogether. Later calls reject with `CLOSED`; closing twice is one
   * closing.
   */
  close(): Promise<void>;
}

/** A value that stays as it is until it is released, also when its store is closed. */
export interface PinnedValue {
  readonly byteLength: number;
  /** Fills `into` from byte `offset` on. Rejects where it is too short, or damaged. */
  read(into: Uint8Array, options?: ReadOptions): Promise<void>;
  /**
   * Gives its file one more name, which is the caller's; false where that can't be, as on another
   * device.
   */
  linkAs(path: string): Promise<boolean>;
  /** Idempotent. */
  release(): Promise<void>;
}

/** Whether the store may keep the array that is written. */
export interface WriteOptions {
  /**
   * The array is the store's from the call on, which may spare it a copy; the caller's again where
   * the write rejects. Default false.
   */
  readonly isGiven?: boolean;
}

/** Where in a value a read begins, in bytes. */
export interface ReadOptions {
  /** First byte of the value to read; 0. */
  readonly offset?: number;
}
