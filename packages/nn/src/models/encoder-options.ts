// What an encoder is called with besides its token ids.

import { isTensor, type Tensor } from '@shardweave/tensor-core';
import { checkNames } from '../check-options.js';
import { NnConfigError } from '../errors.js';

/** Options of a call of an encoder. All tensors are [batch, seq], as the ids are. */
export interface EncoderOptions {
  /**
   * The number of the text that each token belongs to (u32 or i32), where rows hold several. A
   * token attends only to tokens with its own number. Two texts in a row of five are 0, 0, 0, 1, 1.
   * Padding is hidden from a text by a number of its own.
   */
  readonly segments?: Tensor | undefined;
  /** The position of each token in its text (i32 or u32). Default: counted on from 0. */
  readonly positions?: Tensor | undefined;
  /** The type of each token (i32 or u32), below type_vocab_size. Default 0 for all. */
  readonly tokenTypes?: Tensor | undefined;
  /**
   * Whether the call returns what the pooler makes of each row's first token, [batch, hidden_size].
   * The model needs a pooler for it. Default false.
   */
  readonly isPooled?: boolean | undefined;
  /**
   * Which tokens' rows the pooler gets where isPooled is true, counted over all rows (u32 or i32
   * [texts]): token 2 of row 1 of five is 7. Default: each row's first.
   */
  readonly pooledTokens?: Tensor | undefined;
}

const NAMES = [
  'segments',
  'positions',
  'tokenTypes',
  'isPooled',
  'pooledTokens',
] as const satisfies (keyof EncoderOptions)[];

/** The arguments of an encoder. */
export type EncoderArgs = readonly [ids: Tensor, options?: EncoderOptions];

/**
 * @throws {NnConfigError} for a tensor in place of options, for unknown names, and for pooled rows
 * of a model without a pooler
 */
export function checkEncoderOptions(options: EncoderOptions, hasPooler: boolean): void {
  if (isTensor(options)) {
    throw new NnConfigError(
      'encoder.call: expected options after the ids, got a tensor. Write { tokenTypes }.',
    );
  }
  checkNames('encoder.call', options, NAMES);
  if (options.isPooled === true && !hasPooler) {
    throw new NnConfigError(
      'encoder.call: expected a model with a pooler where isPooled is true, got one without. Set add_pooling_layer in its configuration.',
    );
  }
}
