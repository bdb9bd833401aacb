// The models of the families Llama, Qwen 2, Qwen 3, SmolLM3 and Gemma 3. One class covers them all;
// its configuration says what separates them.

import type { Device, Tensor } from '@shardweave/tensor-core';
import { RmsNorm } from '../layers/rms-norm.js';
import { type DecoderConfig, type DecoderOptions, resolveDecoderConfig } from './decoder-config.js';
import { DecoderBlock, DecoderEmbeddings } from './decoder-layers.js';
import { normOptions } from './decoder-parts.js';
import { LanguageHead } from './language-head.js';
import { LanguageModel, type LanguageModelOptions } from './language-model.js';
import { RotaryTable } from './rotary-table.js';
import type { TokenArgs } from './token-options.js';

/**
 * A decoder-only language model of the Llama, Qwen 2, Qwen 3, SmolLM3 or Gemma 3 family. A call
 * maps ids [batch, seq] to logits [batch, seq, vocab_size] or, where targets are given, to the loss
 * of each token, f32 [batch, seq]. Its parameters have the Hub's names and shapes.
 */
export class Decoder extends LanguageModel<DecoderConfig> {
  readonly #rotary: RotaryTable;

  /** @throws {NnConfigError} naming the field that is missing or cannot work */
  constructor(device: Device, options: DecoderOptions, modelOptions: LanguageModelOptions = {}) {
    const config = resolveDecoderConfig(options);
    const { vocab_size: vocab, hidden_size: dim } = config;
    const rotary = new RotaryTable(config);
    super(
      device,
      {
        config,
        numBlocks: config.num_hidden_layers,
        paths: { embeddings: 'model', blocks: 'model.layers', head: '' },
        embeddings: (init) => new DecoderEmbeddings(device, config, { init }),
        block: (init, layer) => new DecoderBlock(device, config, { init, rotary, layer }),
        head: (init, table) =>
          new LanguageHead(device, {
            norm: ['model.norm', new RmsNorm(device, normOptions(config, { init }))],
            weight: config.tie_word_embeddings
              ? { name: 'model.embed_tokens.weight', table }
              : {
                  name: 'lm_head.weight',
                  shape: [vocab, dim],
                  std: config.initializer_range,
                  init,
                },
          }),
      },
      modelOptions,
    );
    this.#rotary = rotary;
  }

  override async forward(...args: TokenArgs): Promise<Tensor> {
    this.#rotary.on(this.device); // in the scope of the whole call, so that all blocks find it
    if (this.config.sliding_window !== undefined) {
      this.#rotary.on(this.device, 'sliding');
    }
    return super.forward(...args);
  }
}
