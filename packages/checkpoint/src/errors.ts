// Typed errors of saves. `code` is stable and is what callers branch on; the README has the table.

import { CodedError } from '@shardweave/dtypes/messages';

/** What tells the errors of this package apart. */
export type CheckpointErrorCode =
  | 'USAGE'
  | 'MISSING'
  | 'FORMAT'
  | 'CORRUPT'
  | 'STATE_DICT'
  | 'INCOMPLETE'
  | 'REPLACED'
  | 'BUSY';

/** Base of all errors that this package rejects with on purpose. */
export abstract class CheckpointError extends CodedError {
  abstract override readonly code: CheckpointErrorCode;
}

/** Arguments that are wrong whatever is saved. */
export class CheckpointUsageError extends CheckpointError {
  readonly code = 'USAGE';
}

/** There is no save: none was written, or the first one did not end. */
export class CheckpointMissingError extends CheckpointError {
  readonly code = 'MISSING';
}

/** The index has another format, or a field that is not what the format says. */
export class CheckpointFormatError extends CheckpointError {
  readonly code = 'FORMAT';
  readonly file: string;
  /** The field, such as `tensors[3].pieces[0][1]`; '' for the file as a whole. */
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
  /** The tensors whose pieces are damaged, as messages name them. */
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

/**
 * A state of a save, a file or a state dict that does not fit the model or optimizer which should
 * take it. `nn` exports this class too, and throws it, as do the packages built on it.
 */
export class StateDictError extends CheckpointError {
  readonly code = 'STATE_DICT';
  /** The names that the model has and the state lacks. */
  readonly missing: readonly string[];
  /** The names that the state has and the model lacks. */
  readonly unexpected: readonly string[];
  /** The names whose shape, dtype or length differ. */
  readonly mismatched: readonly string[];

  constructor(
    message: string,
    names: {
      readonly missing?: readonly string[];
      readonly unexpected?: readonly string[];
      readonly mismatched?: readonly string[];
    } = {},
  ) {
    super(message);
    this.missing = names.missing ?? [];
    this.unexpected = names.unexpected ?? [];
    this.mismatched = names.mismatched ?? [];
  }
}

/** Parts that do not make up whole tensors: some elements were written by nobody, or twice. */
export class CheckpointIncompleteError extends CheckpointError {
  readonly code = 'INCOMPLETE';
  readonly tensor: string;

  constructor(message: string, tensor: string) {
    super(message);
    this.tensor = tensor;
  }
}

/** Another save has taken the place of the one that is being read, whose files are gone. */
export class CheckpointReplacedError extends CheckpointError {
  readonly code = 'REPLACED';
}

/** Another save into the same place has not ended. */
export class CheckpointBusyError extends CheckpointError {
  readonly code = 'BUSY';
}
