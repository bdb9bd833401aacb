// Wraps the parts of a model that a policy chooses, from the inside out.

import type { Module } from '@shardweave/nn';
import { requireModule } from '@shardweave/nn/flat';
import type { Tensor } from '@shardweave/tensor-core';
import { FUNCTION } from '@shardweave/tensor-core/options';
import { checkValue } from '../check-options.js';
import { FsdpConfigError } from '../errors.js';
import type { FullyShardedDataParallel } from '../fully-sharded-data-parallel.js';
import { isFsdp } from '../is-fsdp.js';
import type { Wrap } from './enable-wrap.js';

/** What a policy is asked about a module. */
export interface WrapCandidate {
  readonly module: Module;
  /** The path from the model that autoWrap was called with, whose own path is ''. */
  readonly path: string;
  readonly isRoot: boolean;
  /**
   * 'recurse' asks whether to look at its children; 'wrap', which comes after that, asks whether to
   * wrap the module itself.
   */
  readonly question: 'recurse' | 'wrap';
  /** The elements of its parameters; for 'wrap' without those that wrapped children have taken. */
  readonly unwrappedParams: number;
}

/** Answers the candidate's question: whether to look at its children, or whether to wrap it. */
export type WrapPolicy = (candidate: WrapCandidate) => boolean;

/** The result of autoWrap. */
export interface AutoWrapped {
  /** The model, or the wrapper around it. */
  readonly module: Module;
  /**
   * The wrapper around the model with its own type, for calls that want the root; undefined where
   * the policy did not choose the model or `wrap` made something else of it.
   */
  readonly root: FullyShardedDataParallel | undefined;
  /** The number of elements in the parameters that are in some wrapper. */
  readonly numWrappedParams: number;
}

/**
 * Replaces `module` and modules below it by what `wrap` makes of them where `policy` says so:
 * children first, then their parent with the parameters that are left. A module that appears in
 * several places is wrapped once. A module that shares a parameter or a module with others outside
 * it is left to the module that holds them all. Where the policy chooses nothing the module comes
 * back as it was, and `numWrappedParams` is 0.
 * @throws {FsdpConfigError} where something below is wrapped already; nothing is changed
 * @example
 * ```ts
 * import { createMemoryGroup } from '@shardweave/collectives';
 * import { autoWrap, FullyShardedDataParallel } from '@shardweave/fsdp';
 * import { Gpt2, Gpt2Block } from '@shardweave/nn';
 * import { Device } from '@shardweave/tensor-core';
 * import { createCpuBackend } from '@shardweave/tensor-core/cpu';
 *
 * const backend = await createCpuBackend({ threads: 1 });
 * const device = new Device(backend);
 * const [processGroup] = createMemoryGroup(1);
 * const config = { vocab_size: 16, n_positions: 8, n_embd: 16, n_layer: 3, n_head: 2 };
 * const { numWrappedParams } = autoWrap(
 *   new Gpt2(device, config),
 *   ({ question, module }) => question === 'recurse' || module instanceof Gpt2Block,
 *   (module) => new FullyShardedDataParallel(module, { processGroup: processGroup! }),
 * );
 * console.log(numWrappedParams); // logs 9840
 * await backend.dispose();
 * ```
 */
export function autoWrap(module: Module, policy: WrapPolicy, wrap: Wrap): AutoWrapped {
  requireModule('autoWrap', module, FsdpConfigError);
  checkValue('autoWrap', 'policy', policy, FUNCTION);
  checkValue('autoWrap', 'wrap', wrap, FUNCTION);
  const wrapped = module.namedModules().find(([, inner]) => inner !== module && isFsdp(inner));
  if (wrapped !== undefined) {
    throw new FsdpConfigError(
      `autoWrap: expected a model with nothing wrapped inside, got '${wrapped[0]}' wrapped. Wrap it by a policy, or wrap what is around it by hand.`,
    );
  }
  const walk = new Walk(module, policy, wrap);
  const result = walk.visit(module, '');
  const root = isFsdp(result) ? result : undefined;
  return { module: result, root, numWrappedParams: sizeOf(walk.taken) };
}

class Walk {
  /** The parameters that are in some wrapper. */
  readonly taken = new Set<Tensor>();
  readonly #root: Module;
  readonly #policy: WrapPolicy;
  readonly #wrap: Wrap;
  readonly #results = new Map<Module, Module>();
  /**
   * The modules that own a parameter, and those that hold a module as their child, before any
   * wrapping.
   */
  readonly #users = new Map<Tensor | Module, Set<Module>>();

  constructor(root: Module, policy: WrapPolicy, wrap: Wrap) {
    this.#root = root;
    this.#policy = policy;
    this.#wrap = wrap;
    for (const [, module] of root.namedModules()) {
      const used = [...module.ownParameters().values(), ...module.children().values()];
      for (const item of used) {
        const users = this.#users.get(item) ?? new Set();
        this.#users.set(item, users.add(module));
      }
    }
  }

  /** The module that takes this one's place: its wrapper, or itself. */
  visit(module: Module, path: string): Module {
    const known = this.#results.get(module);
    if (known !== undefined) {
      return known;
    }
    const inside = module.namedModules().map(([, inner]) => inner);
    const all = module.parameters();
    let result = module;
    const ask = (question: WrapCandidate['question'], unwrappedParams: number) => {
      const isRoot = module === this.#root;
      return this.#policy({ module, path, isRoot, question, unwrappedParams });
    };
    if (ask('recurse', sizeOf(all))) {
      for (const [name, child] of module.children()) {
        const place = [path, module.childPrefix(name)].filter((part) => part !== '').join('.');
        const replacement = this.visit(child, place);
        if (replacement !== child) {
          module.replaceChild(name, replacement);
        }
      }
      const left = all.filter((tensor) => !this.taken.has(tensor));
      if (ask('wrap', sizeOf(left)) && !this.#isSharing(module, inside, left)) {
        result = this.#wrap(module, path === '' ? {} : { name: path });
        for (const tensor of all) {
          this.taken.add(tensor);
        }
      }
    }
    this.#results.set(module, result);
    return result;
  }

  /** Whether a module outside uses a parameter that is left, or a module that is not wrapped. */
  #isSharing(module: Module, inside: readonly Module[], left: readonly Tensor[]): boolean {
    const known = new Set(inside);
    const isUsedOutside = (item: Tensor | Module) =>
      [...(this.#users.get(item) ?? [])].some((user) => !known.has(user));
    const bare = inside.filter((inner) => inner !== module && this.#results.get(inner) === inner);
    return left.some(isUsedOutside) || bare.some(isUsedOutside);
  }
}

function sizeOf(tensors: Iterable<Tensor>): number {
  let size = 0;
  for (const tensor of tensors) {
    size += tensor.size;
  }
  return size;
}
