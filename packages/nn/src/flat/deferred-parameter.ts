// Parameters that have a shape and a recipe of their values, but no memory yet: for a model that no
// device holds whole. Sharding draws each rank's part; `materialize` fills a plain module.

import { type Device, isTensor, type Shape, Tensor } from '@shardweave/tensor-core';
import type { Module } from '../module.js';

/** Values that can be made in any order, part by part. */
export interface ParameterRecipe {
  /** Writes the values of elements [start, start + into.length), row-major. Equal in every call. */
  write(into: Float32Array, start: number): void;
}

/** Elements that are on the host at once while a parameter is filled: 4 MiB. */
const CHUNK_ELEMENTS = 2 ** 20;

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

/** Its values exist from here on, wherever; called by who has made or replaced them. */
export function dropRecipe(parameter: Tensor): void {
  if (parameter instanceof DeferredParameter && parameter.recipe !== undefined) {
    parameter.recipe = undefined;
    parameter.storage.absentHint = undefined;
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
    for (let start = 0; start < parameter.size; start += CHUNK_ELEMENTS) {
      const values = new Float32Array(Math.min(CHUNK_ELEMENTS, parameter.size - start));
      recipe.write(values, start);
      parameter.storage.write(new Uint8Array(values.buffer), start * values.BYTES_PER_ELEMENT);
    }
    dropRecipe(parameter);
  }
}

/** Gives a deferred parameter memory without drawing its values: all of them are written next. */
export function fillDeferred(parameter: Tensor): void {
  if (recipeOf(parameter) === undefined || parameter.piece !== undefined) {
    return;
  }
  parameter.storage.fill();
  dropRecipe(parameter);
}
