// Typed errors of stores. `code` is stable and is what callers branch on; the README has the table.

import { CodedError } from '@shardweave/dtypes/messages';

/** What tells the errors of stores apart. */
export type StoreErrorCode =
  | 'USAGE'
  | 'CLOSED'
  | 'UNKNOWN_KEY'
  | 'FULL'
  | 'IO'
  | 'CORRUPT'
  | 'INCOMPLETE'
  | 'LOCKED';

/** Base of all errors that stores reject with on purpose. */
export abstract class StoreError extends CodedError {
  abstract override readonly code: StoreErrorCode;
}

/** Arguments that are wrong whatever is stored. */
export class StoreUsageError extends StoreError {
  readonly code = 'USAGE';
}

/** A call after `close`. */
export class StoreClosedError extends StoreError {
  readonly code = 'CLOSED';

  constructor(operation: string, store: string) {
    super(`${operation}: expected an open store, got a closed one (${store}).`);
  }
}

/** A read of a key that was never written, or that was deleted. */
export class UnknownKeyError extends StoreError {
  readonly code = 'UNKNOWN_KEY';
  readonly key: string;

  constructor(operation: string, key: string, store: string) {
    super(`${operation}: expected a key that was written, got '${key}' (${store}).`);
    this.key = key;
  }
}

/** There is no room: the disk is full, or a quota or the cap of a host store is reached. */
export class StoreFullError extends StoreError {
  readonly code = 'FULL';
}

/** The device below failed, or refuses access. `cause` is its error. */
export class StoreIoError extends StoreError {
  readonly code = 'IO';
}

/** What is stored is not what was written: a checksum, a length or a file is wrong. */
export class StoreCorruptError extends StoreError {
  readonly code = 'CORRUPT';
}

/** A commit after writes that failed, when the step is not whole. */
export class StoreIncompleteError extends StoreError {
  readonly code = 'INCOMPLETE';
  readonly keys: readonly string[];

  constructor(keys: readonly string[], store: string, cause: unknown) {
    const named = keys.map((key) => `'${key}'`).join(', ');
    super(
      `commit: expected every write to have succeeded, got failures of ${named} (${store}). ` +
        'Write or delete those keys, or withdraw the writes, which keeps the values before them.',
      { cause },
    );
    this.keys = keys;
  }
}

/** Another owner has the directory. */
export class StoreLockedError extends StoreError {
  readonly code = 'LOCKED';
  /** The owner in words, such as `process 12 on whale`. */
  readonly owner: string;
  /** The file to delete where the owner is gone; undefined where the system says that it lives. */
  readonly file: string | undefined;

  constructor(
    message: string,
    { owner, file }: { readonly owner: string; readonly file: string | undefined },
  ) {
    super(message);
    this.owner = owner;
    this.file = file;
  }
}
