// Rotary position embedding (Su et al., 2021) in the halves convention of Llama: columns j and j +
// dim / 2 of a head turn by position * frequency j. Angles are exact at any position, for they are
// products of integers modulo a turn; in f32 they would be off by 0.008 at position 131,072.

import { pow64 } from '@shardweave/dtypes/float64';
import { checkNames, checkOptions, checkValue } from '../check-options.js';
import type { Device } from '../device.js';
import { ShapeError } from '../errors.js';
import { above, optional, whole } from '../options.js';
import { elementCountOf, isTensor, type Tensor } from '../tensor.js';
import {
  isSameShape,
  requireFloat,
  requireInteger,
  requireSameDevice,
  shapeText,
} from './checks.js';

/**
 * How the frequencies of a model are stretched for longer texts than it was trained on: all of them
 * by the factor alone, or the low ones as Llama 3.1 does it, with the other three fields.
 */
export interface RotaryScaling {
  /** The divisor of the frequencies, such as 8. */
  readonly factor: number;
  /**
   * A number such as 1: frequencies with wavelengths above originalLength / lowFrequencyFactor
   * tokens are divided by the whole factor.
   */
  readonly lowFrequencyFactor?: number;
  /**
   * A number such as 4: frequencies with wavelengths below originalLength / highFrequencyFactor
   * tokens stay as they are. Between the two bounds the division is interpolated.
   */
  readonly highFrequencyFactor?: number;
  /** The length in tokens of the texts on which the model was trained, such as 8192. */
  readonly originalLength?: number;
}

/**
 * Options of rotaryFrequencies: the width of a head, the base (RoFormer, Su et al., 2021), and how
 * a model is stretched for longer texts.
 */
export interface RotaryFrequencyOptions {
  /** The number of columns of a head, which is even. */
  readonly headDim: number;
  /** The base of the frequencies, which configurations call theta. The default is 10,000. */
  readonly base?: number;
  readonly scaling?: RotaryScaling;
}

/**
 * Options of rotaryEmbedding: the frequencies, the position of each token, and how many heads turn.
 */
export interface RotaryEmbeddingOptions {
  /** The tensor that rotaryFrequencies makes, u32 [2, headDim / 2]. */
  readonly frequencies: Tensor;
  /**
   * The positions (i32, u32) of the tokens, [seq] for all sequences alike or [..., seq]. The
   * default is offset, offset + 1, and so on.
   */
  readonly positions?: Tensor;
  /**
   * The position of a sequence's first token where there are no `positions`, such as the number of
   * tokens in a cache. The default is 0.
   */
  readonly offset?: number;
  /**
   * How many heads are rotated, from the first on; the others are copied, such as the values behind
   * queries and keys in one tensor. The default is all heads.
   */
  readonly numRotated?: number;
}

/**
 * base^(-2j / headDim) radians a position for j < headDim / 2, as the op takes them: 64-bit
 * fractions of a turn, u32 [2, headDim / 2], high words first. Belongs to the caller, or to the
 * scope.
 */
export function rotaryFrequencies(device: Device, options: RotaryFrequencyOptions): Tensor {
  checkOptions<RotaryFrequencyOptions>('rotaryFrequencies', options, {
    headDim: whole(2),
    base: optional(above(1)),
    scaling: optional({
      expected:
        'a factor alone, or the factors of Llama 3 (lowFrequencyFactor, highFrequencyFactor and originalLength beside it)',
      holds: isScaling,
    }),
  });
  const { headDim, base = 10_000, scaling } = options;
  if (headDim % 2 !== 0) {
    throw new ShapeError(
      `rotaryFrequencies: expected an even headDim, got ${headDim}. Columns turn in pairs.`,
    );
  }
  const half = headDim / 2;
  const words = new Uint32Array(2 * half);
  for (let j = 0; j < half; j++) {
    const plain = pow64(base, (-2 * j) / headDim);
    const turns = (scaling === undefined ? plain : stretched(plain, scaling)) / (2 * Math.PI);
    const high = Math.floor(turns * 2 ** 32);
    words[j] = high;
    words[half + j] = Math.floor((turns * 2 ** 32 - high) * 2 ** 32);
  }
  return device.tensor(words, [2, half]);
}

function isScaling(value: unknown): boolean {
  const { factor, ...band } = (value ?? {}) as Partial<RotaryScaling>;
  const { lowFrequencyFactor: low, highFrequencyFactor: high, originalLength } = band;
  const numbers = Object.keys(band).length === 0 ? [factor] : [factor, low, high, originalLength];
  return numbers.every((number) => typeof number === 'number' && number > 0);
}

function stretched(frequency: number, scaling: RotaryScaling): number {
  const { factor, lowFrequencyFactor: low, highFrequencyFactor: high, originalLength } = scaling;
  if (low === undefined || high === undefined || originalLength === undefined) {
    return frequency / factor;
  }
  const turnsInText = (originalLength * frequency) / (2 * Math.PI);
  const kept = Math.min(1, Math.max(0, (turnsInText - low) / (high - low)));
  return kept * frequency + ((1 - kept) * frequency) / factor;
}

/**
 * Rotates the heads of x [..., seq, heads, headDim] by the positions of their tokens. One kernel
 * treats all heads, so packed queries, keys and values need not be split first. The gradient is the
 * rotation back.
 * @throws {ShapeError} when x, frequencies, positions, offset or numRotated do not fit together
 * @throws {DTypeError} when x is no float tensor, or the positions are no integers
 * @throws {OptionError} when there are no frequencies
 */
export function rotaryEmbedding(x: Tensor, options: RotaryEmbeddingOptions): Tensor {
  checkNames('rotaryEmbedding', options, ['frequencies', 'positions', 'offset', 'numRotated']);
  const { frequencies, positions, offset = 0 } = options;
  const rule = { expected: 'a tensor', holds: isTensor };
  checkValue('rotaryEmbedding', 'frequencies', frequencies, rule);
  requireFloat('rotaryEmbedding', x);
  requireSameDevice('rotaryEmbedding', x, frequencies, ...(positions ? [positions] : []));
  const [seq, heads, headDim] = x.shape.slice(-3) as [number, number, number];
  const { numRotated = heads } = options;
  const half = headDim / 2;
  if (x.rank < 3 || frequencies.dtype !== 'u32' || !isSameShape(frequencies.shape, [2, half])) {
    throw new ShapeError(
      `rotaryEmbedding: expected x [..., seq, heads, headDim] and frequencies u32 [2, headDim / 2], got ${shapeText(x.shape)} and ${frequencies.dtype} ${shapeText(frequencies.shape)}. rotaryFrequencies makes them.`,
    );
  }
  const tokenShape = x.shape.slice(0, -2);
  if (positions !== undefined) {
    requireInteger('rotaryEmbedding', positions);
    if (!isSameShape(positions.shape, [seq]) && !isSameShape(positions.shape, tokenShape)) {
      throw new ShapeError(
        `rotaryEmbedding: expected positions ${shapeText([seq])} or ${shapeText(tokenShape)}, got ${shapeText(positions.shape)}. One for each token.`,
      );
    }
  }
  const isCount = Number.isInteger(numRotated) && numRotated >= 0 && numRotated <= heads;
  if (!isCount || !Number.isInteger(offset) || (positions !== undefined && offset !== 0)) {
    throw new ShapeError(
      `rotaryEmbedding: expected numRotated within ${heads} heads and a whole offset, none beside positions, got ${numRotated} and ${offset}.`,
    );
  }
  const { device } = x;
  const turn = (from: Tensor, isInverse: boolean): Tensor => {
    const to = device.empty(x.shape, { dtype: x.dtype });
    if (to.size > 0) {
      device.run('rotary', {
        x: from.view(),
        frequencies: frequencies.view(),
        positions: positions?.view(),
        out: to.view(),
        tokens: elementCountOf(tokenShape),
        heads,
        numRotated,
        half,
        period: positions?.size ?? seq,
        offset,
        isInverse,
      });
    }
    return to;
  };
  const out = turn(x, false);
  device.record({
    name: 'rotaryEmbedding',
    inputs: [x],
    outputs: [out],
    saved: [frequencies, ...(positions ? [positions] : [])],
    backward: ([dy]) => [turn(dy!, true)],
  });
  return out;
}
