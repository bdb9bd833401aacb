// Where initial values come from: a seed and a parameter's path. Each parameter has a random stream
// of its own, so values depend neither on the order of construction nor on wrapping, and all ranks
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
import { checkOptions, FLAG, type OptionRules, optional, SEED } from './check-options.js';
import { deferredParameter, type ParameterRecipe } from './flat/deferred-parameter.js';
import { joinPath } from './module.js';

/** Makes 64 bits of two 32-bit hashes. */
const SECOND_BASIS = 0x1b873593;

/**
 * What initial values depend on: the seed and a parameter's path. Equal ones give equal values,
 * whatever else is made before.
 */
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

/** Makes the initial values of one module's parameters, in f32: equal to the bit on all devices. */
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

  /** Normally distributed values. Mean 0 and std 1 unless given. */
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

  /** Values evenly distributed from low to high. */
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
