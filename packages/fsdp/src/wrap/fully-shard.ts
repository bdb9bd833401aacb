// Shards a model in one call: the parts that are gathered together, and the root around them.

import { Module } from '@shardweave/nn';
import { shown } from '@shardweave/tensor-core/options';
import { FsdpConfigError } from '../errors.js';
import type { FullyShardedDataParallel } from '../fully-sharded-data-parallel.js';
import type { FsdpOptions } from '../options.js';
import { autoWrap, type WrapPolicy } from './auto-wrap.js';
import type { ModuleClass } from './default-auto-wrap-policy.js';
import { enableWrap } from './enable-wrap.js';

/** The options of every instance, and which modules inside the model get one. */
export interface FullyShardOptions extends FsdpOptions {
  /**
   * The modules below the root that are units of their own: instances of these classes, or those
   * that a policy chooses. Default: none, so that all parameters are gathered at once.
   */
  readonly wrap?: readonly ModuleClass[] | WrapPolicy;
}

/**
 * Wraps the chosen modules inside `module` in place, and then `module` itself. An inner instance is
 * called by its path, such as 'transformer.h.0', and the root by `name`. A module's own
 * `wrapperConfig` wins over the options, as with enableWrap.
 * @throws {FsdpConfigError} as FullyShardedDataParallel does, where something inside is wrapped
 * already, and where none of the given classes is inside
 * @example
 * ```ts
 * import { createMemoryGroup } from '@shardweave/collectives';
 * import { fullyShard } from '@shardweave/fsdp';
 * import { Gpt2, Gpt2Block } from '@shardweave/nn';
 * import { Device } from '@shardweave/tensor-core';
 * import { createCpuBackend } from '@shardweave/tensor-core/cpu';
 *
 * const backend = await createCpuBackend({ threads: 1 });
 * const device = new Device(backend);
 * const [processGroup] = createMemoryGroup(1);
 * const config = { vocab_size: 16, n_positions: 8, n_embd: 16, n_layer: 3, n_head: 2 };
 * const gpt = new Gpt2(device, config);
 * const model = fullyShard(gpt, { processGroup: processGroup!, wrap: [Gpt2Block] });
 * console.log(model.instances().length); // logs 4
 * await backend.dispose();
 * ```
 */
export function fullyShard<
  Args extends readonly unknown[],
  Output,
  Inner extends Module<Args, Output>,
>(
  module: Inner & Module<Args, Output>,
  { wrap = () => false, ...options }: FullyShardOptions,
): FullyShardedDataParallel<Args, Output, Inner> {
  const inner = policyOf(module, wrap);
  const policy: WrapPolicy = (candidate) => candidate.isRoot || inner(candidate);
  const { root } = autoWrap(module, policy, enableWrap(options));
  return root as FullyShardedDataParallel<Args, Output, Inner>;
}

function policyOf(root: Module, wrap: NonNullable<FullyShardOptions['wrap']>): WrapPolicy {
  if (Array.isArray(wrap)) {
    return ofClasses(root, wrap);
  }
  if (typeof wrap === 'function' && !(wrap.prototype instanceof Module)) {
    return wrap as WrapPolicy;
  }
  const got = typeof wrap === 'function' ? `the class ${wrap.name}` : shown(wrap);
  throw new FsdpConfigError(
    `fullyShard: expected wrap as an array of module classes or a policy, got ${got}. Write wrap: [Block].`,
  );
}

/** @throws {FsdpConfigError} where the model has no module of these classes */
function ofClasses(root: Module, classes: readonly ModuleClass[]): WrapPolicy {
  const isChosen = (module: Module) => classes.some((wanted) => module instanceof wanted);
  if (!root.namedModules().some(([, module]) => module !== root && isChosen(module))) {
    throw new FsdpConfigError(
      `fullyShard: expected modules of ${classes.map(({ name }) => name).join(', ') || 'some class'} inside ${root.constructor.name}, got none. Give the classes of its blocks, or leave wrap out.`,
    );
  }
  return ({ module, question }) => question === 'recurse' || isChosen(module);
}
