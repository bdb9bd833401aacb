// Finds the module inside its wrappers.

import type { Module } from '@shardweave/nn';

/**
 * Whether a module only adds something around a single other one, as sharding and activation
 * checkpointing do.
 */
export function isWrapper(module: Module): boolean {
  const names = [...module.children().keys()];
  return names.length === 1 && module.childPrefix(names[0]!) === '';
}

/** The module inside all wrappers; the module itself where there are none. */
export function innerModule(module: Module): Module {
  let inner = module;
  while (isWrapper(inner)) {
    inner = [...inner.children().values()][0]!;
  }
  return inner;
}
