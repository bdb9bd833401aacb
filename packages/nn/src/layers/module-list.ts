// A list of modules named '0', '1' and so on, which the module that owns the list calls as it
// likes.

import type { Device } from '@shardweave/tensor-core';
import { NnConfigError } from '../errors.js';
import { checkModules, Module } from '../module.js';

/** Holds modules in a list. It has no forward of its own, and calling it throws. */
export class ModuleList extends Module<[], never> {
  constructor(device: Device, modules: readonly Module[]) {
    super(device);
    checkModules('ModuleList', modules);
    modules.forEach((module, i) => {
      this.child(String(i), module);
    });
  }

  get length(): number {
    return this.children().size;
  }

  /**
   * The module at an index; a negative index counts from the end. Where a module has been wrapped
   * (sharded, say), it is the wrapper.
   */
  at(index: number): Module | undefined {
    return [...this.children().values()].at(index);
  }

  [Symbol.iterator](): IterableIterator<Module> {
    return this.children().values();
  }

  forward(): never {
    throw new NnConfigError('ModuleList: expected a call of a module in it, got one of the list.');
  }
}
