// Initial values follow from a seed and a parameter's path. Each parameter has a random stream of
// its own, so its values depend neither on the order of construction nor on wrapping, and all ranks
// of a job draw the same.

import { FNV_BASIS, fnv1a } from '@shardweave/dtypes';
import {
  type Device,
  drawNormal,
  drawUniform,
  type RandomKey,
  type Shape,
  type Tensor,
} from '@shardweave/tensor-core';
import { checkOptions, FLAG, type OptionRules, optional, SEED } from '../check-options.js';
import { deferredParameter, type ParameterRecipe } from './deferred-parameter.js';
import { joinPath } from './join-path.js';

/** A second basis for FNV-1a, so that two 32-bit hashes make a key of 64 bits. */
const SECOND_BASIS = 0x1b873593;

/**
 * Options of ParameterInit. Initial values depend only on the seed and a parameter's path, whatever
 * else was made before.
 */
export interface ParameterInitOptions {
  /** Any safe integer, equal on all ranks. */
  readonly seed: number;
  /** The module's path, which precedes the names of its parameters. Default ''. */
  readonly path?: string;
  /**
   * Whether parameters get no memory yet, only a recipe for their values; see materialize. Default
   * false.
   */
  readonly isDeferred?: boolean;
}

const RULES: OptionRules<ParameterInitOptions> = {
  seed: SEED,
  path: optional({ expected: 'a string', holds: (value) => typeof value === 'string' }),
  isDeferred: optional(FLAG),
};

/** Options of a part of a model, such as a block. */
export interface ModelPartOptions {
  /** The source of its initial values, at the part's own path. */
  readonly init: ParameterInit;
}

/**
 * Makes the initial values of one module's parameters, in f32. They are bit for bit equal on all
 * devices.
 */
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
   * The source for a layer that was given none. Its seed is the device's next random key, so layers
   * differ from each other, and a program with the same device seed makes the same layers.
   */
  static next(device: Device): ParameterInit {
    const { key0, key1 } = device.random.nextKey();
    return new ParameterInit(device, { seed: key0 + (key1 >>> 11) * 2 ** 32 });
  }

  /** The source for the parameters of a child. */
  at(name: string): ParameterInit {
    const { device, seed, isDeferred } = this;
    return new ParameterInit(device, { seed, isDeferred, path: joinPath(this.path, name) });
  }

  /**
   * A parameter with normally distributed values, by default of mean 0 and standard deviation 1.
   */
  normal(
    name: string,
    shape: Shape,
    options: { readonly mean?: number; readonly std?: number } = {},
  ): Tensor {
    const key = this.#keyOf(name);
    return this.#made(shape, {
      draw: (into, first) => drawNormal(into, { ...options, key, first }),
    });
  }

  /** A parameter with values uniformly distributed from low to high. */
  uniform(
    name: string,
    shape: Shape,
    options: { readonly low: number; readonly high: number },
  ): Tensor {
    const key = this.#keyOf(name);
    return this.#made(shape, {
      draw: (into, first) => drawUniform(into, { ...options, key, first }),
    });
  }

  zeros(shape: Shape): Tensor {
    return this.#full(shape, 0);
  }

  ones(shape: Shape): Tensor {
    return this.#full(shape, 1);
  }

  #full(shape: Shape, value: number): Tensor {
    return this.#made(shape, {
      draw: (into) => this.device.run('fill', { out: into.view(), value }),
    });
  }

  #made(shape: Shape, recipe: ParameterRecipe): Tensor {
    if (this.isDeferred) {
      return deferredParameter(this.device, shape, recipe);
    }
    const tensor = this.device.empty(shape);
    if (tensor.size > 0) {
      recipe.draw(tensor, 0);
    }
    return tensor;
  }

  #keyOf(name: string): RandomKey {
    const path = joinPath(this.path, name);
    return {
      key0: fnv1a(path, FNV_BASIS ^ (this.seed >>> 0)),
      key1: fnv1a(path, SECOND_BASIS ^ (Math.floor(this.seed / 2 ** 32) >>> 0)),
    };
  }
}
