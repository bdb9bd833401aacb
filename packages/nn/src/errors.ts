// Typed errors of nn. `code` is stable and is what callers branch on; messages read
// `op: expected X, got Y (context). Hint.`. The codes are a table in the package's README.

export type NnErrorCode =
  | 'CONFIG'
  | 'STATE_DICT'
  | 'FORMAT'
  | 'OPTIMIZER'
  | 'ACTIVATION_CHECKPOINT';

/** Base of all errors that nn throws or rejects with on purpose. */
export abstract class NnError extends Error {
  abstract readonly code: NnErrorCode;

  constructor(message: string, options: { readonly cause?: unknown } = {}) {
    super(message, 'cause' in options ? { cause: options.cause } : undefined);
    this.name = new.target.name;
  }
}

/** Options of a layer, model or optimizer that cannot work: the caller's mistake. */
export class NnConfigError extends NnError {
  readonly code = 'CONFIG';
}

/** A state dict that does not fit its module or optimizer; nothing of it was loaded. */
export class StateDictError extends NnError {
  readonly code = 'STATE_DICT';
  /** Names the module has and the dict lacks. */
  readonly missing: readonly string[];
  /** Names the dict has and the module lacks. */
  readonly unexpected: readonly string[];
  /** Names whose shape or dtype differ. */
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

/** A file that is malformed, truncated, or of a kind this package does not read. */
export class FormatError extends NnError {
  readonly code = 'FORMAT';
}

/** An optimizer used with parameters it cannot step. */
export class OptimizerError extends NnError {
  readonly code = 'OPTIMIZER';
}

/** A checkpointed module that cannot be run backward. */
export class ActivationCheckpointError extends NnError {
  readonly code = 'ACTIVATION_CHECKPOINT';
}
