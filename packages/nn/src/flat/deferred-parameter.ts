// Parameters that have a shape and a recipe of their values, but no memory yet: for a model that no
// device holds whole. Sharding draws each rank's part; `materialize` fills a plain module.

import { type Device, type DType, isTensor, type Shape, Tensor } from '@shardweave/tensor-core';
import type { Module } from '../module.js';

/** Makes a parameter's values part by part, in any order. */
export interface ParameterRecipe {
  /**
   * Queues what writes elements [start, start + into.size) of the parameter, row-major, into an f32
   * tensor of any shape: the parameter itself, a part of a flat, or scratch on its way to the host.
   * Equal in every call.
   */
  draw(into: Tensor, start: number): void;
}

/** Elements that a recipe of the host makes at once: 4 MiB. */
const HOST_ELEMENTS = 2 ** 20;

/**
 * A recipe of values that a function makes on the host: it fills `values` with elements from
 * `start` on, in as many calls as it takes to have at most 4 MiB there at once.
 */
export function hostRecipe(write: (values: Float32Array, start: number) => void): ParameterRecipe {
  return {
    draw(into, start) {
      for (let done = 0; done < into.size; done += HOST_ELEMENTS) {
        const values = new Float32Array(Math.min(HOST_ELEMENTS, into.size - done));
        write(values, start + done);
        into.storage.write(new Uint8Array(values.buffer), (into.offset + done) * 4);
      }
    },
  };
}

const HINT =
  'Its module was made with deferred initial values: call materialize(module), load a state dict into it, or wrap it with sharding, which makes each part where it belongs.';

/** A parameter that brings its recipe until its values exist. */
class DeferredParameter extends Tensor {
  recipe: ParameterRecipe | undefined = undefined;
}

/** An f32 leaf without memory; using its values throws a StateError that says what to do. */
export function deferredParameter(device: Device, shape: Shape, recipe: ParameterRecipe): Tensor {
  const elementCount = shape.reduce((product, dim) => product * dim, 1);
  const storage = device.storage(elementCount, 'f32', 'parameter');
  storage.absentHint = HINT;
  const tensor = new DeferredParameter(storage, shape);
  tensor.recipe = recipe;
  device.track(tensor); // its scope, or itself, is the holder from here on
  storage.release();
  return tensor;
}

/** The recipe of a parameter whose values were not made yet. */
export function recipeOf(parameter: Tensor): ParameterRecipe | undefined {
  return parameter instanceof DeferredParameter ? parameter.recipe : undefined;
}

/**
 * Marks a parameter's values as made, wherever they are. Whoever made or replaced them calls it.
 */
export function dropRecipe(parameter: Tensor): void {
  if (parameter instanceof DeferredParameter && parameter.recipe !== undefined) {
    parameter.recipe = undefined;
    parameter.storage.absentHint = undefined;
  }
}

/**
 * Has a deferred parameter take `dtype` when its values are made, rounded from what its recipe
 * draws in f32.
 */
export function castDeferred(parameter: Tensor, dtype: DType): void {
  const before = parameter.storage;
  const storage = before.device.storage(parameter.size, dtype, before.tag);
  storage.absentHint = HINT;
  parameter.rebind(storage, 0);
  before.release();
}

/** Elements of f32 scratch on the way into 16 bits: 4 MiB. */
const SCRATCH_ELEMENTS = 2 ** 20;

/**
 * Queues what writes a recipe's elements from `start` on into all of `into`, a tensor of any float
 * dtype.
 */
export function drawInto(recipe: ParameterRecipe, into: Tensor, start: number): void {
  const { device } = into;
  if (into.dtype === 'f32') {
    recipe.draw(into, start);
    return;
  }
  for (let done = 0; done < into.size; done += SCRATCH_ELEMENTS) {
    const length = Math.min(SCRATCH_ELEMENTS, into.size - done);
    device.scope(() => {
      const values = device.empty([length], { tag: 'staging' });
      recipe.draw(values, start + done);
      const out = into.storage.view(into.offset + done, length);
      device.run('cast', { x: values.view(), out });
    });
  }
}

/**
 * Makes the values of one deferred parameter, or of all of a module's; nothing for others, and for
 * those that sharding has taken over.
 */
export function materialize(target: Module | Tensor): void {
  const parameters = isTensor(target) ? [target] : target.parameters();
  for (const parameter of parameters) {
    const recipe = recipeOf(parameter);
    if (recipe === undefined || parameter.piece !== undefined) {
      continue;
    }
    parameter.storage.fill();
    if (parameter.size > 0) {
      drawInto(recipe, parameter, 0);
    }
    dropRecipe(parameter);
  }
}

/** Gives a deferred parameter memory without drawing values: the caller writes all of them. */
export function fillDeferred(parameter: Tensor): void {
  if (recipeOf(parameter) === undefined || parameter.piece !== undefined) {
    return;
  }
  parameter.storage.fill();
  dropRecipe(parameter);
}
