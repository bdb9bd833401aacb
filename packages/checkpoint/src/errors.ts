// Typed errors of saves. `code` is stable and is what callers branch on; the README has the table.

export type CheckpointErrorCode =
  | 'USAGE'
  | 'MISSING'
  | 'FORMAT'
  | 'CORRUPT'
  | 'MISMATCH'
  | 'INCOMPLETE'
  | 'BUSY';

/** Base of all errors that this package rejects with on purpose. */
export abstract class CheckpointError extends Error {
  abstract readonly code: CheckpointErrorCode;

  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** Arguments that can't be right whatever is saved. */
export class CheckpointUsageError extends CheckpointError {
  readonly code = 'USAGE';
}

/** There is no save: nobody wrote one, or the first one did not end. */
export class CheckpointMissingError extends CheckpointError {
  readonly code = 'MISSING';
}

/** An index of another format, or one whose fields are not what the format says. */
export class CheckpointFormatError extends CheckpointError {
  readonly code = 'FORMAT';
  readonly file: string;
  /** Such as `tensors[3].pieces[0][1]`; '' for the file as a whole. */
  readonly field: string;

  constructor(message: string, place: { readonly file: string; readonly field: string }) {
    super(message);
    this.file = place.file;
    this.field = place.field;
  }
}

/** What is stored is not what was written: a checksum, a length or a file is wrong. */
export class CheckpointCorruptError extends CheckpointError {
  readonly code = 'CORRUPT';
  readonly file: string;
  /** Tensors whose pieces are damaged, as messages name them. */
  readonly tensors: readonly string[];

  constructor(
    message: string,
    place: { readonly file: string; readonly tensors?: readonly string[] },
  ) {
    super(message);
    this.file = place.file;
    this.tensors = place.tensors ?? [];
  }
}

/** A save of another model or optimizer. */
export class CheckpointMismatchError extends CheckpointError {
  readonly code = 'MISMATCH';
  readonly missing: readonly string[];
  readonly unexpected: readonly string[];
  readonly mismatched: readonly string[];

  constructor(
    message: string,
    entries: {
      readonly missing?: readonly string[];
      readonly unexpected?: readonly string[];
      readonly mismatched?: readonly string[];
    } = {},
  ) {
    super(message);
    this.missing = entries.missing ?? [];
    this.unexpected = entries.unexpected ?? [];
    this.mismatched = entries.mismatched ?? [];
  }
}

/** Parts that do not make whole tensors: elements that nobody wrote, or that two did. */
export class CheckpointIncompleteError extends CheckpointError {
  readonly code = 'INCOMPLETE';
  readonly tensor: string;

  constructor(message: string, tensor: string) {
    super(message);
    this.tensor = tensor;
  }
}

/** Another save into the same place has not ended. */
export class CheckpointBusyError extends CheckpointError {
  readonly code = 'BUSY';
}
