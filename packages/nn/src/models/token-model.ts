// A Sequential that is called with token ids, and whose layers have the paths that the Hub's files
// use for them. Decoders and encoders differ in the layers, and in what a call passes to each.

import type { Device, Tensor } from '@shardweave/tensor-core';
import { checkOptions, FLAG, optional, SEED } from '../check-options.js';
import { Sequential } from '../layers/sequential.js';
import type { Module } from '../module.js';
import { ParameterInit } from '../parameters/parameter-init.js';

/** Options of a model that is called with token ids: how it gets its initial weights. */
export interface TokenModelOptions {
  /** The seed of the initial weights, equal on all ranks. Default 0. */
  readonly seed?: number;
  /**
   * Whether weights get no memory until they are sharded, materialized or loaded. Default false.
   */
  readonly deferInit?: boolean;
}

/** The parts of a TokenModel. */
export interface TokenModelParts<Config> {
  readonly config: Config;
  /** The path of each layer, with which those of its parameters begin. */
  readonly paths: readonly string[];
  /** Makes the layers in the order of their paths. `inits` has one source for each. */
  layers(inits: readonly ParameterInit[]): readonly Module[];
}

/** The base of models that are called with token ids: a Sequential of layers with paths. */
export class TokenModel<
  Config extends { readonly model_type: string },
  // biome-ignore lint/suspicious/noExplicitAny: arguments of any kind, as Sequential has it
  Args extends readonly any[],
> extends Sequential<Args, Tensor> {
  readonly config: Config;
  readonly #paths: readonly string[];

  constructor(device: Device, parts: TokenModelParts<Config>, options: TokenModelOptions) {
    const { config, paths } = parts;
    checkOptions<TokenModelOptions>(config.model_type, options, {
      seed: optional(SEED),
      deferInit: optional(FLAG),
    });
    const { seed = 0, deferInit: isDeferred = false } = options;
    const root = new ParameterInit(device, { seed, isDeferred });
    super(device, parts.layers(paths.map((path) => root.at(path))));
    this.config = config;
    this.#paths = paths;
    for (const [path, parameter] of this.namedParameters()) {
      parameter.name = path;
    }
  }

  /** Layers have the Hub's names in paths, once the constructor knows them. */
  override childPrefix(name: string): string {
    return #paths in this ? this.#paths[Number(name)]! : name;
  }
}
