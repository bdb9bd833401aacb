// A model that is called with token ids: a Sequential of embeddings, blocks and a head. Families of
// models differ in these layers and in the paths that the Hub's files use.

import type { Device, Tensor } from '@shardweave/tensor-core';
import { checkOptions, FLAG, optional, SEED } from '../check-options.js';
import { Sequential } from '../layers/sequential.js';
import type { Module } from '../module.js';
import { joinPath } from '../parameters/join-path.js';
import { ParameterInit } from '../parameters/parameter-init.js';
import type { ModelConfig } from './model-config.js';
import { type TokenArgs, tokenArguments } from './token-options.js';

/** Options of a language model: how it gets its initial weights. */
export interface LanguageModelOptions {
  /** The seed of the initial weights, equal on all ranks. Default 0. */
  readonly seed?: number;
  /**
   * Whether weights get no memory until they are sharded, materialized or loaded. Default false.
   */
  readonly deferInit?: boolean;
}

/** The parts of which a family builds its model. */
export interface LanguageModelParts<Config extends ModelConfig> {
  readonly config: Config;
  readonly numBlocks: number;
  /**
   * How the paths of parameters begin. A block's number follows `blocks`, as in 'transformer.h.0'.
   */
  readonly paths: { readonly embeddings: string; readonly blocks: string; readonly head: string };
  embeddings(init: ParameterInit): Module & { readonly table: Tensor };
  block(init: ParameterInit): Module;
  head(init: ParameterInit, table: Tensor): Module;
}

/**
 * Maps ids [batch, seq] (i32 or u32) to logits [batch, seq, vocab_size] or, where targets are
 * given, to the loss of each token, f32 [batch, seq]; see TokenOptions. Where the head is tied, the
 * first and the last layer share a table, so sharding keeps both in one unit.
 */
export class LanguageModel<Config extends ModelConfig = ModelConfig> extends Sequential<
  TokenArgs,
  Tensor
> {
  readonly config: Config;
  readonly #paths: readonly string[];

  constructor(device: Device, parts: LanguageModelParts<Config>, options: LanguageModelOptions) {
    checkOptions<LanguageModelOptions>(parts.config.model_type, options, {
      seed: optional(SEED),
      deferInit: optional(FLAG),
    });
    const { seed = 0, deferInit: isDeferred = false } = options;
    const { numBlocks, paths: among } = parts;
    const blocks = Array.from({ length: numBlocks }, (_, i) => joinPath(among.blocks, String(i)));
    const paths = [among.embeddings, ...blocks, among.head];
    const root = new ParameterInit(device, { seed, isDeferred });
    const embeddings = parts.embeddings(root.at(among.embeddings));
    super(device, [
      embeddings,
      ...blocks.map((path) => parts.block(root.at(path))),
      parts.head(root.at(among.head), embeddings.table),
    ]);
    this.config = parts.config;
    this.#paths = paths;
    for (const [path, parameter] of this.namedParameters()) {
      parameter.name = path;
    }
  }

  /** Layers have the Hub's names in paths, once the constructor knows them. */
  override childPrefix(name: string): string {
    return #paths in this ? this.#paths[Number(name)]! : name;
  }

  override argumentsOf(index: number, previous: unknown, args: TokenArgs): readonly unknown[] {
    return tokenArguments(index, previous, { args, count: this.#paths.length });
  }
}
