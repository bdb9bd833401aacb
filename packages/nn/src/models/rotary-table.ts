// The rotary frequencies of a model, which its layers share. They follow from the configuration, so
// they are no buffer, which a file of weights would have to hold.

import { type Device, rotaryFrequencies, type Tensor } from '@shardweave/tensor-core';
import type { ModelPartOptions } from '../parameters/parameter-init.js';
import type { DecoderConfig } from './decoder-config.js';

/** How a block of a decoder is made. */
export interface DecoderPartOptions extends ModelPartOptions {
  /** The table that the blocks of a model share. Default: one of the block's own. */
  readonly rotary?: RotaryTable | undefined;
  /** The number of the block in its model, since layers may differ. Default 0. */
  readonly layer?: number | undefined;
}

/**
 * The table that rotaryEmbedding takes. It belongs to the scope in which it was asked for first: a
 * model that asks before its blocks do makes one for all of them, and holds no memory between its
 * calls. A block that runs by itself, such as one of a checkpoint in backward, makes its own.
 */
export class RotaryTable {
  readonly #config: DecoderConfig;
  #table: Tensor | undefined;

  constructor(config: DecoderConfig) {
    this.#config = config;
  }

  /** The table on a device, u32 [2, head_dim / 2]. */
  on(device: Device): Tensor {
    if (this.#table?.storage.isFilled !== true) {
      this.#table = frequenciesOf(device, this.#config);
    }
    return this.#table;
  }
}

function frequenciesOf(device: Device, config: DecoderConfig): Tensor {
  const { head_dim: headDim, rope_theta: base, rope_scaling: scaling } = config;
  return rotaryFrequencies(device, {
    headDim,
    base,
    ...(scaling && {
      scaling: {
        factor: scaling.factor,
        lowFrequencyFactor: scaling.low_freq_factor,
        highFrequencyFactor: scaling.high_freq_factor,
        originalLength: scaling.original_max_position_embeddings,
      },
    }),
  });
}
