// The scaling of rotary frequencies that a file's factors come from. The file has a factor for each
// frequency, and config.json the four numbers of Llama 3's formula.

import { toF32Array } from '@shardweave/dtypes';
import type { RopeScaling } from '@shardweave/nn';
import { GgufModelError } from '../errors.js';
import { factorsOf, type Llama3Scaling, ROPE_FACTORS } from '../rope-factors.js';
import type { Gguf } from './open-gguf.js';

/**
 * Lengths of texts for which a model was first trained: Llama 3's, then others. Each that gives the
 * factors is as good as the right one, since only the factors count.
 */
const LENGTHS = [8192, ...Array.from({ length: 17 }, (_, i) => 16 << i)];
/** Converters compute the factors in f32, and some of them frequencies too. */
const TOLERANCE = 1e-3;

/**
 * Llama 3's scaling that gives the factors of a file; null for a file without factors, and where
 * all of them are 1.
 * @throws {GgufModelError} for factors that come from another formula
 */
export async function ropeScalingOf(
  { tensors }: Gguf,
  angles: { readonly rope_theta: number; readonly head_dim: number },
): Promise<RopeScaling | null> {
  const stored = tensors.get(ROPE_FACTORS);
  if (stored === undefined) {
    return null;
  }
  const { type, shape, byteLength } = stored;
  const numPairs = angles.head_dim / 2;
  if (type !== 'f32' || shape.length !== 1 || shape[0] !== numPairs) {
    throw new GgufModelError(
      `'${ROPE_FACTORS}': expected f32 [${numPairs}], a factor for each pair of a head's columns, got ${type} [${shape.join(', ')}].`,
    );
  }
  const factors = toF32Array(await stored.read({ start: 0, byteLength }), 'f32');
  if (factors.every((factor) => factor === 1)) {
    return null;
  }
  const largest = Number(Math.max(...factors).toPrecision(5));
  for (const length of LENGTHS) {
    const scaling: Llama3Scaling = {
      rope_type: 'llama3',
      factor: largest,
      low_freq_factor: 1,
      high_freq_factor: 4,
      original_max_position_embeddings: length,
    };
    const found = factorsOf(angles, scaling);
    if (found.every((factor, i) => Math.abs(factor / factors[i]! - 1) < TOLERANCE)) {
      return scaling;
    }
  }
  throw new GgufModelError(
    `'${ROPE_FACTORS}': expected the factors of Llama 3's rope_scaling, got ${[...factors.slice(0, 4)].join(', ')}, ... Rotary positions that are stretched in another way are not supported.`,
  );
}
