// The factors by which llama.cpp divides each rotary frequency. It has no key for Llama 3's
// scaling, and reads a tensor instead.

import { pow64 } from '@shardweave/dtypes/float64';
import type { DecoderConfig, RopeScaling } from '@shardweave/nn';
import type { GgufTensor } from './gguf-file.js';

/** The scaling that is stored as factors. */
export type Llama3Scaling = Extract<RopeScaling, { readonly rope_type: 'llama3' }>;

/** The name of the tensor of factors. */
export const ROPE_FACTORS = 'rope_freqs.weight';

/** The tensor `rope_freqs.weight`; undefined where frequencies are not scaled. */
export function ropeFactors(config: DecoderConfig): GgufTensor | undefined {
  const { rope_scaling: scaling } = config;
  if (scaling?.rope_type !== 'llama3') {
    return undefined;
  }
  const factors = factorsOf(config, scaling);
  return {
    name: ROPE_FACTORS,
    type: 'f32',
    shape: [factors.length],
    pieces: () => [new Uint8Array(factors.buffer)],
  };
}

/** The factor of each frequency, one for each pair of a head's columns. */
export function factorsOf(
  { rope_theta: base, head_dim: headDim }: Pick<DecoderConfig, 'rope_theta' | 'head_dim'>,
  scaling: Llama3Scaling,
): Float32Array<ArrayBuffer> {
  return Float32Array.from({ length: headDim / 2 }, (_, pair) =>
    factorOf(pow64(base, (-2 * pair) / headDim), scaling),
  );
}

/**
 * Llama 3.1's scaling: frequencies that turn often within the original length stay, and those that
 * turn seldom are divided by the whole factor. Between them the frequencies themselves (not the
 * factors) are blended.
 */
function factorOf(frequency: number, scaling: Llama3Scaling): number {
  const { factor, low_freq_factor: low, high_freq_factor: high } = scaling;
  const turns = (scaling.original_max_position_embeddings * frequency) / (2 * Math.PI);
  const kept = Math.min(1, Math.max(0, (turns - low) / (high - low)));
  return 1 / (kept + (1 - kept) / factor);
}
