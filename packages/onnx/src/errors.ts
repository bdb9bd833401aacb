// Typed errors of this package. `code` is stable and is what callers branch on; the README has the
// table.

import { CodedError } from '@shardweave/dtypes/messages';

/** What tells the errors of this package apart. */
export type OnnxErrorCode = 'USAGE' | 'MODEL';

/** Base of all errors that this package throws or rejects with on purpose. */
export abstract class OnnxError extends CodedError {
  abstract override readonly code: OnnxErrorCode;
}

/** Arguments that are wrong whatever the model is. */
export class OnnxUsageError extends OnnxError {
  readonly code = 'USAGE';
}

/**
 * A model that can't be written as an ONNX file: weights or labels that are not its
 * configuration's, numbers beyond a type's range, and files of 2 GiB and more.
 */
export class OnnxModelError extends OnnxError {
  readonly code = 'MODEL';
}
