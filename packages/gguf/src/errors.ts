// Typed errors of this package. `code` is stable and is what callers branch on; the README has the
// table.

import { CodedError } from '@shardweave/dtypes/messages';

/** What tells the errors of this package apart. */
export type GgufErrorCode = 'USAGE' | 'MODEL' | 'TOKENIZER';

/** Base of all errors that this package throws or rejects with on purpose. */
export abstract class GgufError extends CodedError {
  abstract override readonly code: GgufErrorCode;
}

/** Arguments that are wrong whatever the model is. */
export class GgufUsageError extends GgufError {
  readonly code = 'USAGE';
}

/**
 * A model whose tensors or configuration can't be written as a GGUF file that llama.cpp reads, and
 * a file that is damaged or has a model that is not supported.
 */
export class GgufModelError extends GgufError {
  readonly code = 'MODEL';
}

/**
 * A tokenizer that llama.cpp has no equivalent of, or whose files lack something, and one in a file
 * that has no equivalent here.
 */
export class GgufTokenizerError extends GgufError {
  readonly code = 'TOKENIZER';
}
