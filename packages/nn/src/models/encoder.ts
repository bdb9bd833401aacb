// BERT (Devlin et al., 2018) and its kin. MiniLM, BGE and E5 are configurations of it.

import type { Device } from '@shardweave/tensor-core';
import { type EncoderConfig, resolveEncoderConfig } from './encoder-config.js';
import { EncoderBlock, EncoderEmbeddings, EncoderPooler } from './encoder-layers.js';
import { checkEncoderOptions, type EncoderArgs } from './encoder-options.js';
import { TokenModel, type TokenModelOptions } from './token-model.js';

/**
 * A text encoder, BERT (Devlin et al., 2018) or a model of its kin. A call maps ids [batch, seq]
 * (i32 or u32) to the rows of the last layer [batch, seq, hidden_size]; see EncoderOptions. Its
 * parameters have the Hub's names and shapes.
 * @example
 * ```ts
 * import { Encoder } from '@shardweave/nn/embedding';
 * import { Device } from '@shardweave/tensor-core';
 * import { createCpuBackend } from '@shardweave/tensor-core/cpu';
 *
 * const backend = await createCpuBackend({ threads: 1 });
 * const device = new Device(backend);
 * const config = { vocab_size: 64, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 4 };
 * const model = new Encoder(device, { ...config, intermediate_size: 64 }).eval();
 * const row = (...values: number[]) => device.tensor(Int32Array.from(values), [1, values.length]);
 * const alone = await model.call(row(2, 7, 3));
 * const packed = await model.call(row(2, 9, 8, 3, 2, 7, 3), {
 *   segments: row(0, 0, 0, 0, 1, 1, 1),
 *   positions: row(0, 1, 2, 3, 0, 1, 2),
 * });
 * console.log(alone.shape); // logs [ 1, 3, 32 ]
 * const [first, again] = [(await alone.toArray())[0]!, (await packed.toArray())[4 * 32]!];
 * console.log(Math.abs(first - again) < 1e-5); // logs true
 * await backend.dispose();
 * ```
 */
export class Encoder extends TokenModel<EncoderConfig, EncoderArgs> {
  readonly #numBlocks: number;

  /** @throws {NnConfigError} naming the field that cannot work */
  constructor(
    device: Device,
    options: Partial<EncoderConfig> = {},
    modelOptions: TokenModelOptions = {},
  ) {
    const config = resolveEncoderConfig(options);
    const { num_hidden_layers: numBlocks, add_pooling_layer: hasPooler } = config;
    const blocks = Array.from({ length: numBlocks }, (_, i) => `encoder.layer.${i}`);
    const paths = ['embeddings', ...blocks, ...(hasPooler ? ['pooler'] : [])];
    super(
      device,
      {
        config,
        paths,
        layers: (inits) =>
          inits.map((init, i) => {
            const Layer = layerAt(i, numBlocks);
            return new Layer(device, config, { init });
          }),
      },
      modelOptions,
    );
    this.#numBlocks = numBlocks;
  }

  override argumentsOf(index: number, previous: unknown, args: EncoderArgs): readonly unknown[] {
    const [ids, options = {}] = args;
    const { segments, positions, tokenTypes, isPooled, pooledTokens } = options;
    if (index === 0) {
      checkEncoderOptions(options, this.config.add_pooling_layer);
      return [ids, { positions, tokenTypes }];
    }
    return [previous, index <= this.#numBlocks ? { segments } : { isPooled, pooledTokens }];
  }
}

function layerAt(
  index: number,
  numBlocks: number,
): typeof EncoderEmbeddings | typeof EncoderBlock | typeof EncoderPooler {
  if (index === 0) {
    return EncoderEmbeddings;
  }
  return index <= numBlocks ? EncoderBlock : EncoderPooler;
}
