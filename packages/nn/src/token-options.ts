// What a language model is called with beside its token ids, and how that reaches its layers.

import { slice, type Tensor } from '@shardweave/tensor-core';
import type { KeyValueCache, LayerCache } from './generation/key-value-cache.js';

/** Tensors are [batch, seq], as the ids are. */
export interface TokenOptions {
  /**
   * The ids to predict (i32, u32). With them a call gives the loss of each, f32 [batch, seq], in
   * the place of logits, which then never lie in memory as a whole. An id that is no word has the
   * loss 0.
   */
  readonly targets?: Tensor | undefined;
  /** Several documents in a row: a position sees those of its own number alone (u32). */
  readonly segments?: Tensor | undefined;
  /**
   * Places in their documents (i32, u32). Default those behind what the cache holds: 0, 1, and so
   * on without one.
   */
  readonly positions?: Tensor | undefined;
  /** Keys and values of tokens before these, in one row; those of these are written behind them. */
  readonly cache?: KeyValueCache | undefined;
  /** Logits of each row's last token alone, [batch, 1, words]. Default false. */
  readonly onlyLast?: boolean | undefined;
}

/** What embeddings are told of their tokens. */
export interface EmbeddingPlaces extends Pick<TokenOptions, 'positions'> {
  /** The first token's position where there are no positions. Default 0. */
  readonly offset?: number | undefined;
}

/** What a block is told of its tokens. */
export interface RowPlaces extends Pick<TokenOptions, 'segments' | 'positions'> {
  /** The block's own. */
  readonly cache?: LayerCache | undefined;
}

/** What a head is asked for. */
export type HeadOptions = Pick<TokenOptions, 'targets' | 'onlyLast'>;

/**
 * A Sequential of token embeddings, blocks and a head; the call gives logits [batch, seq, words],
 * or losses.
 */
export type TokenArgs = readonly [ids: Tensor, options?: TokenOptions];

/** The arguments of the index-th of `count` layers; see Sequential.argumentsOf. */
export function tokenArguments(
  index: number,
  previous: unknown,
  call: { readonly args: TokenArgs; readonly count: number },
): readonly unknown[] {
  const [ids, { targets, segments, positions, cache, onlyLast } = {}] = call.args;
  if (index === 0) {
    return [ids, { positions, offset: cache?.length }];
  }
  return index === call.count - 1
    ? [previous, { targets, onlyLast }]
    : [previous, { segments, positions, cache: cache?.layer(index - 1) }];
}

/** The tokens that a head is asked about: x [batch, seq, width], or the last of each row. */
export function headRows(x: Tensor, { onlyLast = false }: HeadOptions): Tensor {
  return onlyLast ? slice(x, { axis: 1, start: x.shape[1]! - 1 }) : x;
}
