// Makes the values of deferred parameters, which have only a recipe until then.

import { isTensor, type Tensor } from '@shardweave/tensor-core';
import type { Module } from './module.js';
import { drawInto, dropRecipe, recipeOf } from './parameters/deferred-parameter.js';
import { readEncoded } from './parameters/encoded-parameter.js';

/**
 * Makes the values of a deferred parameter, or of all deferred parameters of a module. Parameters
 * that have values and those that sharding has taken over stay as they are. Await it where some
 * rest in blocks, which are encoded on the host; all others are there when it returns.
 */
export async function materialize(target: Module | Tensor): Promise<void> {
  const inBlocks: Tensor[] = [];
  const parameters = isTensor(target) ? [target] : target.parameters();
  for (const parameter of parameters) {
    const recipe = recipeOf(parameter);
    if (recipe === undefined || parameter.piece !== undefined) {
      continue;
    }
    if (parameter.blocks !== undefined) {
      inBlocks.push(parameter);
      continue;
    }
    parameter.storage.fill();
    if (parameter.size > 0) {
      drawInto(recipe, parameter, 0);
    }
    dropRecipe(parameter);
  }
  for (const parameter of inBlocks) {
    const words = await readEncoded(parameter, { start: 0, length: parameter.blocks!.words.size });
    parameter.storage.fill();
    parameter.storage.write(words);
    dropRecipe(parameter);
  }
}
