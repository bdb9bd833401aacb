// Typed errors of nn. `code` is stable and is what callers branch on; messages read
// `op: expected X, got Y (context). Hint.`. The codes are a table in the package's README.

/** What saves throw for a state of another model is what state dicts throw for it. */
export { StateDictError } from '@shardweave/checkpoint';

/** The stable codes of this package's errors, one a class; callers branch on them. */
export type NnErrorCode = 'CONFIG' | 'FORMAT' | 'OPTIMIZER' | 'ACTIVATION_CHECKPOINT';

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
