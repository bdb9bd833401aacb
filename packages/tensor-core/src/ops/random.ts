// Random tensors whose elements depend only on a key and the element's number. All devices draw
// equal bits, and a shard can draw its part of a tensor alone. random-recipe.ts has the arithmetic.

import { checkOptions } from '../check-options.js';
import type { Device, TensorOptions } from '../device.js';
import { OptionError } from '../errors.js';
import { atLeast, given, type OptionRule, type OptionRules, optional, whole } from '../options.js';
import type { RandomKey } from '../random.js';
import { NORMAL_BITS, normalTail, UNIFORM_BITS } from '../random-recipe.js';
import type { Shape, Tensor } from '../tensor.js';
import { requireFloat } from './checks.js';
import { checkWritten } from './tensor-data.js';

/**
 * Options of every draw: the tensor that it makes, and which numbers of which stream its elements
 * are. Element i depends on the key and `first + i` alone, so shards draw what the whole would.
 */
export interface RandomOptions extends TensorOptions {
  /** The key of the stream. The default is the device's next key, which is equal on all ranks. */
  readonly key?: RandomKey;
  /** The number of the first element, by which a shard draws its own part. The default is 0. */
  readonly first?: number;
}

/** The interval [low, high) of a uniform distribution. */
export interface UniformBounds {
  /** The lower bound. The default is 0. */
  readonly low?: number;
  /** The upper bound. The default is 1. */
  readonly high?: number;
}

/**
 * The shape of a normal distribution: its mean and standard deviation, and the bounds at which it
 * may be truncated.
 */
export interface NormalShape {
  /** The mean before truncation. The default is 0. */
  readonly mean?: number;
  /** The standard deviation before truncation. The default is 1. */
  readonly std?: number;
  /** The least value that is drawn. By default there is no bound. */
  readonly low?: number;
  /** The greatest value that is drawn. By default there is no bound. */
  readonly high?: number;
}

/** Options of a uniform draw: its stream, the tensor it makes, and the interval. */
export type UniformOptions = RandomOptions & UniformBounds;
/** Options of a normal draw: its stream, the tensor it makes, and the shape of the distribution. */
export type NormalOptions = RandomOptions & NormalShape;

/** Which elements of which stream `drawUniform` and `drawNormal` write. */
export interface StreamPart {
  readonly key: RandomKey;
  /** The number of the first element in the stream. The default is 0. */
  readonly first?: number;
}

/**
 * How random words become numbers: the arguments of the kernel `random`, whose numbers lie around
 * 0, and the middle that is added to them afterwards.
 */
interface RandomRecipe {
  readonly kind: 'uniform' | 'normal';
  readonly scale: number;
  readonly middle: number;
  readonly first: number;
  readonly range: number;
}

const NUMBER: OptionRule = {
  expected: 'a finite number',
  isOptional: true,
  holds: (value) => Number.isFinite(value),
};
const ANY: OptionRule = { expected: 'anything', isOptional: true, holds: () => true };
const KEY: OptionRule = {
  expected: 'a key of two words',
  holds: (value) => Number.isInteger((value as RandomKey | null)?.key0 ?? Number.NaN),
};
const FIRST = optional(whole(0));
const PART: OptionRules<StreamPart> = { key: KEY, first: FIRST };
const TENSOR: OptionRules<RandomOptions> = {
  dtype: ANY,
  tag: ANY,
  requiresGrad: ANY,
  key: optional(KEY),
  first: FIRST,
};
const BOUNDS: OptionRules<UniformBounds> = { low: NUMBER, high: NUMBER };
const NORMAL: OptionRules<NormalShape> = {
  mean: NUMBER,
  std: optional(atLeast(0)),
  low: NUMBER,
  high: NUMBER,
};

/**
 * A tensor of numbers distributed uniformly from low to high, in 2^24 equally likely values.
 * @throws {OptionError} for bounds in the wrong order
 * @throws {DTypeError} for an integer dtype
 */
export function randomUniform(device: Device, shape: Shape, options: UniformOptions = {}): Tensor {
  checkOptions<UniformOptions>('randomUniform', options, { ...TENSOR, ...BOUNDS });
  const { low, high, ...rest } = options;
  return drawn(device, shape, rest, uniformRecipe(given({ low, high })));
}

/**
 * A tensor of normally distributed numbers, up to 6.3 standard deviations from the mean, in steps
 * of 2^-21 standard deviations. Where low or high are given, the distribution is truncated to them.
 * @throws {OptionError} for bounds that leave less than a millionth of the distribution
 * @throws {DTypeError} for an integer dtype
 */
export function randomNormal(device: Device, shape: Shape, options: NormalOptions = {}): Tensor {
  checkOptions<NormalOptions>('randomNormal', options, { ...TENSOR, ...NORMAL });
  const { mean, std, low, high, ...rest } = options;
  return drawn(device, shape, rest, normalRecipe(given({ mean, std, low, high })));
}

/**
 * Fills an existing float tensor with the numbers that randomUniform draws with the same key.
 * @throws {ShapeError} for a 16-bit tensor that begins or ends inside a word
 */
export function drawUniform(into: Tensor, options: StreamPart & UniformBounds): void {
  checkOptions<StreamPart & UniformBounds>('drawUniform', options, { ...PART, ...BOUNDS });
  draw(into, options, uniformRecipe(options));
}

/**
 * Fills an existing float tensor with the numbers that randomNormal draws with the same key.
 * @throws {ShapeError} for a 16-bit tensor that begins or ends inside a word
 */
export function drawNormal(into: Tensor, options: StreamPart & NormalShape): void {
  checkOptions<StreamPart & NormalShape>('drawNormal', options, { ...PART, ...NORMAL });
  draw(into, options, normalRecipe(options));
}

function uniformRecipe({ low = 0, high = 1 }: UniformBounds): RandomRecipe {
  if (!(low <= high)) {
    throw new OptionError(`randomUniform: expected low <= high, got ${low} and ${high}.`);
  }
  const scale = (high - low) / 2 / 2 ** UNIFORM_BITS;
  return { kind: 'uniform', scale, middle: (low + high) / 2, first: 0, range: 0 };
}

function normalRecipe({ mean = 0, std = 1, low, high }: NormalShape): RandomRecipe {
  const first = low === undefined || std === 0 ? 0 : Math.ceil(below((low - mean) / std));
  const end = high === undefined || std === 0 ? 2 ** 32 : Math.floor(below((high - mean) / std));
  if (end - first < 2 ** 12) {
    throw new OptionError(
      `randomNormal: expected low and high that leave a millionth of the distribution, got ${low} and ${high} for mean ${mean} and std ${std}.`,
    );
  }
  const range = end - first === 2 ** 32 ? 0 : end - first;
  return { kind: 'normal', scale: std / 2 ** NORMAL_BITS, middle: mean, first, range };
}

/** The probability that a standard normal number lies below z, in units of 2^-32. */
function below(z: number): number {
  const tail = normalTail(Math.min(Math.abs(z), 8));
  return (z < 0 ? tail : 1 - tail) * 2 ** 32;
}

function drawn(
  device: Device,
  shape: Shape,
  { key = device.random.nextKey(), first, ...options }: RandomOptions,
  recipe: RandomRecipe,
): Tensor {
  return device.scope(() => {
    const out = device.empty(shape, options);
    draw(out, { key, ...given({ first }) }, recipe);
    return out;
  });
}

function draw(
  into: Tensor,
  { key: { key0, key1 }, first: counterOffset = 0 }: StreamPart,
  { middle, ...call }: RandomRecipe,
): void {
  const op = call.kind === 'normal' ? 'randomNormal' : 'randomUniform';
  requireFloat(op, into);
  checkWritten(op, into);
  if (into.size === 0) {
    return;
  }
  const { device } = into;
  const out = into.view();
  device.run('random', { ...call, out, key0, key1, counterOffset });
  if (middle !== 0) {
    device.run('affine', { x: out, out, scale: 1, shift: Math.fround(middle) });
  }
  into.storage.markWritten('a random fill', [{ start: into.offset, length: into.size }]);
}
