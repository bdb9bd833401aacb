// Initial values anew, in the parameters that are there: optimizers and wrappers keep theirs.

import type { Module } from './module.js';
import { ParameterInit } from './parameter-init.js';

/**
 * Sets the parameters of all layers below a module to new initial values, which follow from the seed
 * and each layer's path. Parameters that no layer knows how to make keep their values.
 * @param options.seed equal on all ranks. Default: the device's next random key.
 */
export function resetParameters(module: Module, options: { readonly seed?: number } = {}): void {
  const { device } = module;
  const { seed = ParameterInit.next(device).seed } = options;
  for (const [path, layer] of module.namedModules()) {
    layer.resetOwnParameters?.(new ParameterInit(device, { seed, path }));
  }
}
