// Modules in a list, named '0', '1' and so on, that the module around it calls as it likes.

import type { Device } from '@shardweave/tensor-core';
import { NnConfigError } from '../errors.js';
import { checkModules, Module } from '../module.js';

/** Holds modules; it has no forward of its own, so there is nothing to wrap it for. */
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
   * The module at an index, counted from the end where negative; wrappers in the place of what they
   * wrap.
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
