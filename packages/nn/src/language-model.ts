// A model that is called with token ids, as a Sequential: embeddings, blocks, head. Families differ
// in these layers and in the paths of the Hub's files.

import type { Device, Tensor } from '@shardweave/tensor-core';
import { checkOptions, FLAG, optional, SEED } from './check-options.js';
import type { ModelConfig } from './hf/model-config.js';
import { Sequential } from './layers/sequential.js';
import { joinPath, type Module } from './module.js';
import { ParameterInit } from './parameter-init.js';
import { type TokenArgs, tokenArguments } from './token-options.js';

/** How a language model gets its initial weights; its configuration says what it is. */
export interface LanguageModelOptions {
  /** Seed of the initial weights; equal on all ranks. Default 0. */
  readonly seed?: number;
  /** Weights get no memory until they are sharded, materialized or loaded. Default false. */
  readonly deferInit?: boolean;
}

/** What a family's model is made of. */
export interface LanguageModelParts<Config extends ModelConfig> {
  readonly config: Config;
  readonly numBlocks: number;
  /** Paths of parameters begin with these; a block's number follows that of blocks. */
  readonly paths: { readonly embeddings: string; readonly blocks: string; readonly head: string };
  embeddings(init: ParameterInit): Module & { readonly table: Tensor };
  block(init: ParameterInit): Module;
  head(init: ParameterInit, table: Tensor): Module;
}

/**
 * ids [batch, seq] (i32, u32) to logits [batch, seq, vocab_size], or with targets to the loss of
 * each, [batch, seq] in f32: see TokenOptions. Where the head is tied, first and last layer share
 * one table, so sharding keeps both in one unit.
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

  /** The layers' names are the Hub's. */
  override childPrefix(name: string): string {
    return this.#paths[Number(name)]!;
  }

  override argumentsOf(index: number, previous: unknown, args: TokenArgs): readonly unknown[] {
    return tokenArguments(index, previous, { args, count: this.#paths.length });
  }
}
