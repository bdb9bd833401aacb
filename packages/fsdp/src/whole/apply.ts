// A function over all modules while their parameters are whole: custom initial values, for
// instance.

import type { Module } from '@shardweave/nn';
import { isFsdp } from '../is-fsdp.js';
import { isWrapper } from '../wrap/inner-module.js';
import { summonFullParams } from './summon-full-params.js';

/** What apply calls; it may write into parameters, and wait. */
export type ModuleVisitor = (module: Module) => void | Promise<void>;

/**
 * Calls `visit` for every module below and including `module`, children before their parents, each
 * once, wrappers left out. The parameters of a module are whole when it is visited; each rank keeps
 * its own shard of what is written, so write alike on all ranks. Of nested instances only those
 * around a module are gathered at a time. Collective.
 * @throws {FsdpStateError} inside forward, backward or summonFullParams
 */
export async function apply(module: Module, visit: ModuleVisitor): Promise<void> {
  const seen = new Set<Module>();
  const walk = async (each: Module): Promise<void> => {
    if (seen.has(each)) {
      return;
    }
    seen.add(each);
    if (isFsdp(each)) {
      await summonFullParams(each, () => walk(each.module), { recurse: false });
      return;
    }
    for (const child of each.children().values()) {
      await walk(child);
    }
    if (!isWrapper(each)) {
      await visit(each);
    }
  };
  await walk(module);
}
