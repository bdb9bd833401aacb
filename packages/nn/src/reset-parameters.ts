// Initial values anew, in the parameters that are there: optimizers and wrappers keep theirs.

import { checkOptions, FLAG, optional, SEED } from './check-options.js';
import { NnConfigError } from './errors.js';
import type { Module } from './module.js';
import { ParameterInit } from './parameter-init.js';
import { isCopy } from './parameter-place.js';

/**
 * Sets the parameters of all layers below a module to new initial values, which follow from the
 * seed and each layer's path. Parameters that no layer knows how to make keep their values.
 * @param options.seed equal on all ranks. Default: the device's next random key.
 * @param options.writesBack for wrappers: parameters may be gathered copies, which the caller
 * writes back to where they rest. Default false.
 * @throws {NnConfigError} for parameters whose values rest in shards or a store: nothing is set
 */
export function resetParameters(
  module: Module,
  options: { readonly seed?: number; readonly writesBack?: boolean } = {},
): void {
  const rules = { seed: optional(SEED), writesBack: optional(FLAG) };
  checkOptions('resetParameters', options, rules);
  const { device } = module;
  const { seed = ParameterInit.next(device).seed, writesBack = false } = options;
  const copy = module.namedParameters().find(([, parameter]) => isCopy(parameter));
  if (!writesBack && copy !== undefined) {
    throw new NnConfigError(
      `resetParameters: expected parameters whose values rest here, got '${copy[0]}', a copy that nobody writes back. Reset before wrapping, or use the wrapper's own resetParameters.`,
    );
  }
  for (const [path, layer] of module.namedModules()) {
    layer.resetOwnParameters?.(new ParameterInit(device, { seed, path }));
  }
}
