// The rotary frequencies of a model, which its layers share, those of sliding layers apart. They
// follow from the configuration, so they are no buffer, which a file of weights would have to hold.

import {
  type Device,
  type RotaryScaling,
  rotaryFrequencies,
  type Tensor,
} from '@shardweave/tensor-core';
import type { ModelPartOptions } from '../parameters/parameter-init.js';
import type { DecoderConfig, RopeScaling } from './decoder-config.js';

/** How a block of a decoder is made. */
export interface DecoderPartOptions extends ModelPartOptions {
  /** The table that the blocks of a model share. Default: one of the block's own. */
  readonly rotary?: RotaryTable | undefined;
  /** The number of the block in its model, since layers may differ. Default 0. */
  readonly layer?: number | undefined;
}

/** Which layers a table is for. Only Gemma 3 has sliding ones. */
export type RotaryKind = 'full' | 'sliding';

/**
 * The tables that rotaryEmbedding takes. Each belongs to the scope in which it was asked for first:
 * a model that asks before its blocks do makes one for all of them, and holds no memory between its
 * calls. A block that runs by itself, such as one of a checkpoint in backward, makes its own.
 */
export class RotaryTable {
  readonly #config: DecoderConfig;
  readonly #tables: Partial<Record<RotaryKind, Tensor>> = {};

  constructor(config: DecoderConfig) {
    this.#config = config;
  }

  /** The table of a kind on a device, u32 [2, head_dim / 2]. */
  on(device: Device, kind: RotaryKind = 'full'): Tensor {
    let table = this.#tables[kind];
    if (table?.storage.isFilled !== true) {
      table = frequenciesOf(device, this.#config, kind);
      this.#tables[kind] = table;
    }
    return table;
  }
}

function frequenciesOf(device: Device, config: DecoderConfig, kind: RotaryKind): Tensor {
  const { head_dim: headDim, rope_theta: base, rope_scaling: scaling } = config;
  if (kind === 'sliding') {
    return rotaryFrequencies(device, { headDim, base: config.rope_local_base_freq ?? base });
  }
  return rotaryFrequencies(device, {
    headDim,
    base,
    ...(scaling && { scaling: scalingOf(scaling) }),
  });
}

function scalingOf(scaling: RopeScaling): RotaryScaling {
  const { factor } = scaling;
  return scaling.rope_type === 'linear'
    ? { factor }
    : {
        factor,
        lowFrequencyFactor: scaling.low_freq_factor,
        highFrequencyFactor: scaling.high_freq_factor,
        originalLength: scaling.original_max_position_embeddings,
      };
}
