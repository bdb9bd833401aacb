// Gives parameters new initial values. The tensors stay, so optimizers and wrappers keep theirs.

import { checkOptions, FLAG, optional, SEED } from './check-options.js';
import { NnConfigError } from './errors.js';
import { isCopy } from './flat/placement.js';
import type { Module } from './module.js';
import { ParameterInit } from './parameters/parameter-init.js';

/**
 * Sets the parameters of all layers of a module to new initial values, which follow from the seed
 * and each layer's path. Parameters whose layer has no resetOwnParameters keep their values.
 * @param options.seed equal on all ranks; default: the device's next random key
 * @param options.writesBack for wrappers: allows parameters that are gathered copies, which the
 * caller then writes back to where they rest; default false
 * @throws {NnConfigError} for parameters that are copies of values in shards or a store; nothing is
 * set then
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
