// Parameters that have a shape and a recipe for their values, but no memory yet. They serve models
// that no single device can hold. Sharding draws only each rank's part, and `materialize` fills a
// plain module.

import { type Device, type DType, type Shape, Tensor } from '@shardweave/tensor-core';

/** The recipe for a parameter's values, which makes them part by part and in any order. */
export interface ParameterRecipe {
  /**
   * Queues kernels that write elements [start, start + into.size) of the parameter, in row-major
   * order, into an f32 tensor of any shape. That may be the parameter itself, a part of a flat, or
   * temporary memory on the way to the host. Every call gives the same values.
   */
  draw(into: Tensor, start: number): void;
}

/** How many elements a host recipe makes at once: 4 MiB of them. */
const HOST_ELEMENTS = 2 ** 20;

/**
 * A recipe for values that a function makes on the host. The function fills `values` with elements
 * from `start` on. It is called as often as needed to have at most 4 MiB of them there at once.
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

/** A parameter that has its recipe until its values exist. */
class DeferredParameter extends Tensor {
  recipe: ParameterRecipe | undefined = undefined;
}

/** An f32 leaf without memory. Using its values throws a StateError that says what to do. */
export function deferredParameter(device: Device, shape: Shape, recipe: ParameterRecipe): Tensor {
  const elementCount = shape.reduce((product, dim) => product * dim, 1);
  const storage = device.storage(elementCount, 'f32', 'parameter');
  storage.absentHint = HINT;
  const tensor = new DeferredParameter(storage, shape);
  tensor.recipe = recipe;
  device.scopes.track(tensor); // held by its scope or by itself from here on
  storage.release();
  return tensor;
}

/** The recipe of a parameter whose values have not been made yet; undefined for others. */
export function recipeOf(parameter: Tensor): ParameterRecipe | undefined {
  return parameter instanceof DeferredParameter ? parameter.recipe : undefined;
}

/**
 * Marks a parameter's values as made. Whatever made or replaced them, wherever they are, calls
 * this.
 */
export function dropRecipe(parameter: Tensor): void {
  if (parameter instanceof DeferredParameter && parameter.recipe !== undefined) {
    parameter.recipe = undefined;
    parameter.storage.absentHint = undefined;
  }
}

/**
 * Gives a deferred parameter another dtype. When its values are made, the recipe draws them in f32
 * and they are rounded.
 */
export function castDeferred(parameter: Tensor, dtype: DType): void {
  const before = parameter.storage;
  const storage = before.device.storage(parameter.size, dtype, before.tag);
  storage.absentHint = HINT;
  parameter.rebind(storage, 0);
  before.release();
}

/** How many f32 elements are drawn at once before they are rounded to 16 bits: 4 MiB of them. */
const SCRATCH_ELEMENTS = 2 ** 20;

/** Fills `into`, a tensor of any float dtype, with a recipe's elements from `start` on. */
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
 * Gives a deferred parameter memory without drawing values. The caller has to write all of them.
 */
export function fillDeferred(parameter: Tensor): void {
  if (recipeOf(parameter) === undefined || parameter.piece !== undefined) {
    return;
  }
  parameter.storage.fill();
  dropRecipe(parameter);
}
