// What a language model is called with besides its token ids, and how that reaches its layers.

import { isTensor, slice, type Tensor } from '@shardweave/tensor-core';
import { checkNames } from '../check-options.js';
import { NnConfigError } from '../errors.js';
import type { KeyValueCache, LayerCache } from '../layers/key-value-cache.js';

/** Options of a call of a language model. All tensors are [batch, seq], as the ids are. */
export interface TokenOptions {
  /**
   * The ids to predict (i32 or u32). With them the call returns the loss of each, f32 [batch, seq],
   * instead of logits; the logits are then never in memory all at once. A target outside the
   * vocabulary has the loss 0.
   */
  readonly targets?: Tensor | undefined;
  /**
   * The number of the document that each token belongs to (u32), where rows hold several. A token
   * attends only to tokens with its own number. Two documents in a row of five are 0, 0, 0, 1, 1.
   */
  readonly segments?: Tensor | undefined;
  /**
   * The position of each token in its document (i32 or u32). Default: counted on from the tokens
   * that the cache holds, or from 0 without a cache.
   */
  readonly positions?: Tensor | undefined;
  /**
   * The keys and values of earlier tokens of one row. Those of the tokens of this call are written
   * after them.
   */
  readonly cache?: KeyValueCache | undefined;
  /**
   * Whether to compute the logits of each row's last token only, [batch, 1, words]. Default false.
   */
  readonly onlyLast?: boolean | undefined;
  /**
   * Whether to return what the head's product would get, the rows after the last norm, [batch, seq,
   * width], instead of logits. Not beside targets. Default false.
   */
  readonly onlyHidden?: boolean | undefined;
}

const NAMES = [
  'targets',
  'segments',
  'positions',
  'cache',
  'onlyLast',
  'onlyHidden',
] as const satisfies (keyof TokenOptions)[];

/** What embeddings need to know about their tokens. */
export interface EmbeddingPlaces extends Pick<TokenOptions, 'positions'> {
  /** The position of the first token, where `positions` is not given. Default 0. */
  readonly offset?: number | undefined;
}

/** What a block needs to know about its tokens. */
export interface RowPlaces extends Pick<TokenOptions, 'segments' | 'positions'> {
  /** The block's own part of the cache. */
  readonly cache?: LayerCache | undefined;
}

/** What the head is to compute. */
export type HeadOptions = Pick<TokenOptions, 'targets' | 'onlyLast' | 'onlyHidden'>;

/**
 * The arguments of a language model, which is a Sequential of embeddings, blocks and a head. The
 * call returns logits [batch, seq, words] or losses [batch, seq].
 */
export type TokenArgs = readonly [ids: Tensor, options?: TokenOptions];

/** The arguments of the index-th of `count` layers, for Sequential.argumentsOf. */
export function tokenArguments(
  index: number,
  previous: unknown,
  call: { readonly args: TokenArgs; readonly count: number },
): readonly unknown[] {
  const [ids, options = {}] = call.args;
  const { targets, segments, positions, cache, onlyLast, onlyHidden } = options;
  if (index === 0) {
    checkTokenOptions(options);
    return [ids, { positions, offset: cache?.length }];
  }
  return index === call.count - 1
    ? [previous, { targets, onlyLast, onlyHidden }]
    : [previous, { segments, positions, cache: cache?.layer(index - 1) }];
}

/** @throws {NnConfigError} for targets in place of options or beside onlyHidden, unknown names */
function checkTokenOptions(options: unknown): void {
  if (isTensor(options)) {
    throw new NnConfigError(
      `model.call: expected options after the ids, got a tensor. Write { targets }.`,
    );
  }
  checkNames('model.call', options, NAMES);
  const { targets, onlyHidden } = options as TokenOptions;
  if (targets !== undefined && onlyHidden === true) {
    throw new NnConfigError(
      'model.call: expected targets or onlyHidden, got both. Hidden rows have no loss.',
    );
  }
}

/** The rows of x [batch, seq, width] that the head works on: all, or the last of each sequence. */
export function headRows(x: Tensor, { onlyLast = false }: HeadOptions): Tensor {
  return onlyLast ? slice(x, { axis: 1, start: x.shape[1]! - 1 }) : x;
}
