// Makes the values of deferred parameters, which have only a recipe until then.

import { isTensor, type Tensor } from '@shardweave/tensor-core';
import type { Module } from './module.js';
import { drawInto, dropRecipe, recipeOf } from './parameters/deferred-parameter.js';

/**
 * Makes the values of a deferred parameter, or of all deferred parameters of a module. Parameters
 * that have values and those that sharding has taken over stay as they are.
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
