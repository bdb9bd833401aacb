// Where initial values come from: a seed and a parameter's path. Each parameter has a random stream
// of its own, so values depend neither on the order of construction nor on wrapping, and all ranks
// of a job draw the same.

import { FNV_BASIS, fnv1a } from '@shardweave/dtypes';
import { type Device, elementCountOf, type Shape, type Tensor } from '@shardweave/tensor-core';
import { checkOptions, FLAG, type OptionRules, optional, SEED } from './check-options.js';
import { deferredParameter, type ParameterRecipe } from './flat/deferred-parameter.js';
import { joinPath } from './module.js';
import { philox } from './philox.js';

/** Makes 64 bits of two 32-bit hashes. */
const SECOND_BASIS = 0x1b873593;

export interface ParameterInitOptions {
  /** Any safe integer; equal on all ranks. */
  readonly seed: number;
  /** The module's path; parameters' names are joined to it. Default ''. */
  readonly path?: string;
  /** Parameters get no memory, only a recipe of their values: see materialize. Default false. */
  readonly isDeferred?: boolean;
}

const RULES: OptionRules<ParameterInitOptions> = {
  seed: SEED,
  path: optional({ expected: 'a string', holds: (value) => typeof value === 'string' }),
  isDeferred: optional(FLAG),
};

/** Makes the initial values of one module's parameters, in f32, on the host. */
export class ParameterInit {
  readonly device: Device;
  readonly seed: number;
  readonly path: string;
  readonly isDeferred: boolean;

  constructor(device: Device, options: ParameterInitOptions) {
    checkOptions('ParameterInit', options, RULES);
    this.device = device;
    this.seed = options.seed;
    this.path = options.path ?? '';
    this.isDeferred = options.isDeferred ?? false;
  }

  /**
   * The source for a layer that was given none: seeded by the device's next random key, so that
   * layers differ and a program with the same seed makes the same ones.
   */
  static next(device: Device): ParameterInit {
    const { key0, key1 } = device.random.nextKey();
    return new ParameterInit(device, { seed: key0 + (key1 >>> 11) * 2 ** 32 });
  }

  /** The source for a child. */
  at(name: string): ParameterInit {
    const { device, seed, isDeferred } = this;
    return new ParameterInit(device, { seed, isDeferred, path: joinPath(this.path, name) });
  }

  /** Normally distributed values (Box and Muller, 1958). Mean 0 and std 1 unless given. */
  normal(
    name: string,
    shape: Shape,
    options: { readonly mean?: number; readonly std?: number } = {},
  ): Tensor {
    const { mean = 0, std = 1 } = options;
    return this.#draw(name, shape, (words, values) => {
      for (let pair = 0; pair < 4; pair += 2) {
        const radius = Math.sqrt(-2 * Math.log(unit(words[pair]!)));
        const angle = 2 * Math.PI * unit(words[pair + 1]!);
        values[pair] = mean + std * radius * Math.cos(angle);
        values[pair + 1] = mean + std * radius * Math.sin(angle);
      }
    });
  }

  /** Values evenly distributed in (low, high). */
  uniform(
    name: string,
    shape: Shape,
    options: { readonly low: number; readonly high: number },
  ): Tensor {
    const { low, high } = options;
    return this.#draw(name, shape, (words, values) => {
      for (let i = 0; i < 4; i++) {
        values[i] = low + (high - low) * unit(words[i]!);
      }
    });
  }

  zeros(shape: Shape): Tensor {
    return this.#full(shape, 0);
  }

  ones(shape: Shape): Tensor {
    return this.#full(shape, 1);
  }

  #full(shape: Shape, value: number): Tensor {
    if (!this.isDeferred) {
      return this.device.full(shape, value);
    }
    return deferredParameter(this.device, shape, { write: (into) => void into.fill(value) });
  }

  #draw(name: string, shape: Shape, convert: Convert): Tensor {
    const path = joinPath(this.path, name);
    const key0 = fnv1a(path, FNV_BASIS ^ (this.seed >>> 0));
    const key1 = fnv1a(path, SECOND_BASIS ^ (Math.floor(this.seed / 2 ** 32) >>> 0));
    const recipe = drawn(key0, key1, convert);
    if (this.isDeferred) {
      return deferredParameter(this.device, shape, recipe);
    }
    const values = new Float32Array(elementCountOf(shape));
    recipe.write(values, 0);
    return this.device.tensor(values, shape);
  }
}

/** Makes the values of four elements from four random words. */
type Convert = (words: Uint32Array, values: Float32Array) => void;

/** Element e comes from word e mod 4 of block floor(e / 4), so any part can be drawn alone. */
function drawn(key0: number, key1: number, convert: Convert): ParameterRecipe {
  return {
    write(into, start) {
      const words = new Uint32Array(4);
      const values = new Float32Array(4);
      const first = Math.floor(start / 4) * 4;
      for (let at = first; at < start + into.length; at += 4) {
        philox(at / 4, key0, key1, words);
        convert(words, values);
        // Writes beyond either end of a typed array are dropped.
        for (let i = 0; i < 4; i++) {
          into[at + i - start] = values[i]!;
        }
      }
    },
  };
}

/** A word as a number strictly between 0 and 1. */
function unit(word: number): number {
  return (word + 0.5) / 2 ** 32;
}
