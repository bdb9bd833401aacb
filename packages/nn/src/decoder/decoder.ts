// Llama, Qwen 2 and Qwen 3 as a Sequential: token table, blocks, head. One decoder is all of them: what
// separates the families is in its configuration. Parameter paths are the Hub's names.

import type { Device, Tensor } from '@shardweave/tensor-core';
import { checkOptions, FLAG, optional, SEED } from '../check-options.js';
import { Sequential } from '../layers/sequential.js';
import { joinPath, type Module } from '../module.js';
import { ParameterInit } from '../parameter-init.js';
import { type TokenArgs, tokenArguments } from '../token-options.js';
import { type DecoderConfig, type DecoderOptions, resolveDecoderConfig } from './decoder-config.js';
import { DecoderBlock, DecoderEmbeddings, DecoderHead } from './decoder-layers.js';

/**
 * ids [batch, seq] (i32, u32) to logits [batch, seq, vocab_size], or with targets to the loss of each,
 * [batch, seq] in f32: see TokenOptions. Where the head is tied, first and last layer share one table, so sharding keeps both
 * in one unit.
 */
export class Decoder extends Sequential<TokenArgs, Tensor> {
  readonly config: DecoderConfig;

  /**
   * @param options.seed of the initial weights; equal on all ranks. Default 0.
   * @param options.deferInit weights get no memory until they are sharded, materialized or loaded.
   * Default false.
   * @throws {NnConfigError} naming a field that cannot work
   */
  constructor(
    device: Device,
    config: DecoderOptions,
    options: { readonly seed?: number; readonly deferInit?: boolean } = {},
  ) {
    const resolved = resolveDecoderConfig(config);
    checkOptions('Decoder', options, { seed: optional(SEED), deferInit: optional(FLAG) });
    const { seed = 0, deferInit: isDeferred = false } = options;
    super(device, makeLayers(device, resolved, new ParameterInit(device, { seed, isDeferred })));
    this.config = resolved;
    for (const [path, parameter] of this.namedParameters()) {
      parameter.name = path;
    }
  }

  /** The layers' names are the Hub's. */
  override childPrefix(name: string): string {
    return layerPath(Number(name), this.children().size - 2);
  }

  override argumentsOf(index: number, previous: unknown, args: TokenArgs): readonly unknown[] {
    return tokenArguments(index, previous, { args, count: this.children().size });
  }
}

function makeLayers(device: Device, config: DecoderConfig, init: ParameterInit): Module[] {
  const count = config.num_hidden_layers;
  const at = (index: number) => init.at(layerPath(index, count));
  const embeddings = new DecoderEmbeddings(device, config, at(0));
  const blocks = Array.from(
    { length: count },
    (_, i) => new DecoderBlock(device, config, at(i + 1)),
  );
  const table = embeddings.embedTokens.weight;
  return [embeddings, ...blocks, new DecoderHead(device, config, { table, init })];
}

/** The path of the index-th layer among embeddings, `blockCount` blocks and head, whose names are whole ones. */
function layerPath(index: number, blockCount: number): string {
  if (index === 0) {
    return 'model';
  }
  return index <= blockCount ? joinPath('model.layers', String(index - 1)) : '';
}
