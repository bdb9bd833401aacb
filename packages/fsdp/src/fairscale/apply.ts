// Runs a function over all modules while their parameters are whole, to set initial values for
// instance.

import type { Module } from '@shardweave/nn';
import { isWrapper } from '../inner-module.js';
import { isFsdp } from '../is-fsdp.js';
import { summonFullParams } from './summon-full-params.js';

/** What apply calls; it may write into parameters, and may be asynchronous. */
export type ModuleVisitor = (module: Module) => void | Promise<void>;

/**
 * Calls `visit` for `module` and every module below it, each once, children before their parents;
 * wrappers are left out. A module's parameters are whole when it is visited. Each rank keeps its
 * own shard of what is written, so all ranks have to write alike. Only the instances around the
 * visited module are gathered at a time. Collective.
 * @throws {FsdpStateError} inside forward, backward or summonFullParams
 */
export async function apply(module: Module, visit: ModuleVisitor): Promise<void> {
  const seen = new Set<Module>();
  const walk = async (visited: Module): Promise<void> => {
    if (seen.has(visited)) {
      return;
    }
    seen.add(visited);
    if (isFsdp(visited)) {
      await summonFullParams(visited, () => walk(visited.module), { recurse: false });
      return;
    }
    for (const child of visited.children().values()) {
      await walk(child);
    }
    if (!isWrapper(visited)) {
      await visit(visited);
    }
  };
  await walk(module);
}
