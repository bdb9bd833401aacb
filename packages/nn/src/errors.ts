// The errors of nn. Callers branch on `code`, which is stable. Messages read `op: expected X, got Y
// (context). Hint.`. The package's README has a table of the codes.

import { CodedError } from '@shardweave/dtypes/messages';

/** Saves and state dicts throw the same error for the state of another model. */
export { StateDictError } from '@shardweave/checkpoint';

/**
 * The codes of this package's errors, one for each class. They are stable, and callers branch on
 * them.
 */
export type NnErrorCode = 'CONFIG' | 'FORMAT' | 'OPTIMIZER' | 'ACTIVATION_CHECKPOINT';

/** The base of all errors that nn throws or rejects with on purpose. */
export abstract class NnError extends CodedError {
  abstract override readonly code: NnErrorCode;
}

/** Options of a layer, model or optimizer that cannot work. The caller has made a mistake. */
export class NnConfigError extends NnError {
  readonly code = 'CONFIG';
}

/** A file that is malformed, cut off, or of a kind that this package does not read. */
export class FormatError extends NnError {
  readonly code = 'FORMAT';
}

/** An optimizer was used with parameters that it cannot step. */
export class OptimizerError extends NnError {
  readonly code = 'OPTIMIZER';
}

/** Backward cannot run through a checkpointed module. */
export class ActivationCheckpointError extends NnError {
  readonly code = 'ACTIVATION_CHECKPOINT';
}
