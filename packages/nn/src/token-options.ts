// What a language model is called with beside its token ids, and how that reaches its layers.

import type { Tensor } from '@shardweave/tensor-core';

/** Each [batch, seq], as the ids are. */
export interface TokenOptions {
  /**
   * The ids to predict (i32, u32). With them a call gives the loss of each, f32 [batch, seq], in the place of
   * logits, which then never lie in memory as a whole. An id that is no word has the loss 0.
   */
  readonly targets?: Tensor | undefined;
  /** Several documents in a row: a position sees those of its own number alone (u32). */
  readonly segments?: Tensor | undefined;
  /** Places in their documents (i32, u32). Default 0, 1, and so on in every row. */
  readonly positions?: Tensor | undefined;
}

/** A Sequential of token embeddings, blocks and a head; the call gives logits [batch, seq, words], or losses. */
export type TokenArgs = readonly [ids: Tensor, options?: TokenOptions];

/** The arguments of the index-th of `count` layers; see Sequential.argumentsOf. */
export function tokenArguments(
  index: number,
  previous: unknown,
  call: { readonly args: TokenArgs; readonly count: number },
): readonly unknown[] {
  const [ids, { targets, segments, positions } = {}] = call.args;
  if (index === 0) {
    return [ids, { positions }];
  }
  return index === call.count - 1 ? [previous, targets] : [previous, { segments, positions }];
}
