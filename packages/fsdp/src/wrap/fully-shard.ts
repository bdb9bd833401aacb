// Shards a model in one call: the parts that are gathered together, and the root around them.

import { Module } from '@shardweave/nn';
import { requireModule } from '@shardweave/nn/flat';
import { FUNCTION, shown } from '@shardweave/tensor-core/options';
import { checkFsdpOptions } from '../check-options.js';
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
 * @returns the wrapper, to call in the module's place: a backward of a call of the module itself is
 * refused (FsdpStateError)
 * @throws {FsdpConfigError} as FullyShardedDataParallel does, where something inside is wrapped
 * already, and where none of the given classes is inside or the policy chooses nothing there;
 * nothing is wrapped then
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
  options: FullyShardOptions,
): FullyShardedDataParallel<Args, Output, Inner> {
  requireModule('fullyShard', module, FsdpConfigError);
  const { wrap, ...own } = options ?? {};
  checkFsdpOptions(options && own, 'fullyShard'); // before anything inside is wrapped
  const inner = wrap === undefined ? () => false : policyOf(module, wrap);
  const policy: WrapPolicy = (candidate) => inner(candidate) || candidate.isRoot;
  const { root } = autoWrap(module, policy, enableWrap(own));
  return root as FullyShardedDataParallel<Args, Output, Inner>;
}

function policyOf(root: Module, wrap: NonNullable<FullyShardOptions['wrap']>): WrapPolicy {
  if (Array.isArray(wrap) && wrap.every(FUNCTION.holds)) {
    return ofClasses(root, wrap);
  }
  if (typeof wrap === 'function' && !(wrap.prototype instanceof Module)) {
    return choosing(root, wrap as WrapPolicy);
  }
  const got = typeof wrap === 'function' ? `the class ${wrap.name}` : shown(wrap);
  throw new FsdpConfigError(
    `fullyShard: expected wrap as an array of module classes or a policy, got ${got}. Write wrap: [Block].`,
  );
}

/** @throws {FsdpConfigError} where a policy chooses no module below the root */
function choosing(root: Module, policy: WrapPolicy): WrapPolicy {
  let isAnyChosen = false;
  return (candidate) => {
    if (candidate.isRoot) {
      if (candidate.question === 'wrap' && !isAnyChosen) {
        throw noneChosen(root, 'a policy that chooses modules');
      }
      return true; // it is wrapped, whatever the policy says of it
    }
    const isChosen = policy(candidate);
    isAnyChosen ||= isChosen && candidate.question === 'wrap';
    return isChosen;
  };
}

function noneChosen(root: Module, expected: string): FsdpConfigError {
  const inside = root.namedModules().filter(([, module]) => module !== root);
  const classes = [...new Set(inside.map(([, module]) => module.constructor.name))];
  return new FsdpConfigError(
    `fullyShard: expected ${expected} inside ${root.constructor.name}, got none of ${classes.join(', ') || 'no modules'}. Give the classes of its blocks, or leave wrap out: the model is one unit then.`,
  );
}

/** @throws {FsdpConfigError} where the model has no module of these classes */
function ofClasses(root: Module, classes: readonly ModuleClass[]): WrapPolicy {
  const isChosen = (module: Module) => classes.some((wanted) => module instanceof wanted);
  if (!root.namedModules().some(([, module]) => module !== root && isChosen(module))) {
    const names = classes.map(({ name }) => name).join(', ') || 'some class';
    throw noneChosen(root, `modules of ${names}`);
  }
  return ({ module, question }) => question === 'recurse' || isChosen(module);
}
