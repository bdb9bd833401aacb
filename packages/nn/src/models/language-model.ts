// A language model: a Sequential of embeddings, blocks and a head. Families of models differ in
// these layers and in the paths that the Hub's files use.

import type { Device, Tensor } from '@shardweave/tensor-core';
import type { Module } from '../module.js';
import { joinPath } from '../parameters/join-path.js';
import type { ParameterInit } from '../parameters/parameter-init.js';
import type { ModelConfig } from './model-config.js';
import { TokenModel, type TokenModelOptions } from './token-model.js';
import { type TokenArgs, tokenArguments } from './token-options.js';

/** Options of a language model: how it gets its initial weights. */
export type LanguageModelOptions = TokenModelOptions;

/** The parts of which a family builds its model. */
export interface LanguageModelParts<Config extends ModelConfig> {
  readonly config: Config;
  readonly numBlocks: number;
  /**
   * How the paths of parameters begin. A block's number follows `blocks`, as in 'transformer.h.0'.
   */
  readonly paths: { readonly embeddings: string; readonly blocks: string; readonly head: string };
  embeddings(init: ParameterInit): Module & { readonly table: Tensor };
  block(init: ParameterInit, layer: number): Module;
  head(init: ParameterInit, table: Tensor): Module;
}

/**
 * Maps ids [batch, seq] (i32 or u32) to logits [batch, seq, vocab_size] or, where targets are
 * given, to the loss of each token, f32 [batch, seq]; see TokenOptions. Where the head is tied, the
 * first and the last layer share a table, so sharding keeps both in one unit.
 */
export class LanguageModel<Config extends ModelConfig = ModelConfig> extends TokenModel<
  Config,
  TokenArgs
> {
  readonly #numLayers: number;

  constructor(device: Device, parts: LanguageModelParts<Config>, options: LanguageModelOptions) {
    const { config, numBlocks, paths: among } = parts;
    const blocks = Array.from({ length: numBlocks }, (_, i) => joinPath(among.blocks, String(i)));
    const paths = [among.embeddings, ...blocks, among.head];
    const layers = (inits: readonly ParameterInit[]) => {
      const embeddings = parts.embeddings(inits[0]!);
      const made = inits.slice(1, -1).map((init, layer) => parts.block(init, layer));
      return [embeddings, ...made, parts.head(inits.at(-1)!, embeddings.table)];
    };
    super(device, { config, paths, layers }, options);
    this.#numLayers = paths.length;
  }

  override argumentsOf(index: number, previous: unknown, args: TokenArgs): readonly unknown[] {
    return tokenArguments(index, previous, { args, count: this.#numLayers });
  }
}
