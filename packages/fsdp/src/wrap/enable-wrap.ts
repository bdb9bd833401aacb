// Wraps modules with options that come from three places. Nothing is ambient: enableWrap makes a
// function, which is passed to the code that builds a model.

import type { Module } from '@shardweave/nn';
import { FullyShardedDataParallel } from '../fully-sharded-data-parallel.js';
import type { FsdpOptions } from '../options.js';

/** Options that a module brings for its own wrapping. */
export type WrapperConfig = Partial<FsdpOptions>;

/** Wraps a module. `overrides` win over the module's own config, which wins over the common one. */
export type Wrap = <Args extends readonly unknown[], Output>(
  module: Module<Args, Output>,
  overrides?: WrapperConfig,
) => Module<Args, Output>;

/** Makes the wrapper around one module. */
export type MakeWrapper = <Args extends readonly unknown[], Output>(
  module: Module<Args, Output>,
  options: FsdpOptions,
) => Module<Args, Output>;

/**
 * Makes a function that wraps with `config`, as changed by a module's wrapperConfig and by the
 * call's overrides. It follows no policy: it wraps whatever it is called with.
 * @param makeWrapper makes the wrapper, for instance with activation checkpointing around it.
 * Default FullyShardedDataParallel alone
 */
export function enableWrap(
  config: FsdpOptions,
  makeWrapper: MakeWrapper = (module, options) => new FullyShardedDataParallel(module, options),
): Wrap {
  return (module, overrides = {}) =>
    makeWrapper(module, { ...config, ...wrapperConfigOf(module), ...overrides });
}

/** Wraps nothing. It is for models that are built with a Wrap, where no wrapping is wanted. */
export const noWrap: Wrap = (module) => module;

/** The config that a module has as its property `wrapperConfig`. */
export function wrapperConfigOf(module: Module): WrapperConfig | undefined {
  return (module as { readonly wrapperConfig?: WrapperConfig }).wrapperConfig;
}

/** Sets a module's `wrapperConfig`; a class may just as well declare one. */
export function setWrapperConfig(module: Module, config: WrapperConfig): void {
  (module as { wrapperConfig?: WrapperConfig }).wrapperConfig = config;
}
