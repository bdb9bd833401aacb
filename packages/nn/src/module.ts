// A module: named parameters, buffers and children, and a forward. Wrappers (sharding, offload,
// checkpointing) hook into `call`, never into `forward`.

import type { Device, Tensor } from '@shardweave/tensor-core';
import { castInPlace } from './cast-in-place.js';
import { having, shown } from './check-options.js';
import { NnConfigError } from './errors.js';
import { clearGradients } from './flat/clear-gradients.js';
import type { ParameterInit } from './parameter-init.js';

/**
 * Awaited before a module's forward with its arguments; may wait, for instance for its parameters
 * to be gathered.
 */
export type BeforeForward = (args: readonly unknown[]) => void | Promise<void>;
/** Awaited after a module's forward with what it returned, before the module's scope ends. */
export type AfterForward = (output: unknown) => void | Promise<void>;
/**
 * Awaited when the module's scope has ended: of what its forward made, only what it returned or
 * saved for backward is left. Not called where forward or a hook threw.
 */
export type AfterScope = (output: unknown) => void | Promise<void>;

const BRAND = Symbol.for('@shardweave/nn/Module');

/** Whether `value` is a module, of this copy of the package or of another. */
export function isModule(value: unknown): value is Module {
  return typeof value === 'object' && value !== null && BRAND in value;
}

const DEVICE = having('a Device', 'scope', 'backward');

/** @throws {NnConfigError} naming what is no module */
export function checkModules(owner: string, modules: unknown): void {
  if (!Array.isArray(modules)) {
    throw new NnConfigError(`${owner}: expected an array of modules, got ${shown(modules)}.`);
  }
  modules.forEach((module: unknown, i) => {
    if (isModule(module)) {
      return;
    }
    throw new NnConfigError(`${owner}: expected a module at index ${i}, got ${shown(module)}.`);
  });
}

/**
 * Subclasses register what they own in their constructor (`this.weight = this.parameter('weight',
 * tensor)`) and implement forward. Users run `await module.call(x)`.
 */
// biome-ignore lint/suspicious/noExplicitAny: a plain `Module` stands for one of any signature
export abstract class Module<Args extends readonly any[] = any, Output = any> {
  readonly [BRAND] = true;
  readonly device: Device;
  readonly #parameters = new Map<string, Tensor>();
  readonly #buffers = new Map<string, Tensor>();
  readonly #children = new Map<string, Module>();
  readonly #before: BeforeForward[] = [];
  readonly #after: AfterForward[] = [];
  readonly #afterScope: AfterScope[] = [];
  #isTraining = true;

  constructor(device: Device) {
    if (!DEVICE.holds(device)) {
      throw new NnConfigError(
        `${new.target.name}: expected a Device as its first argument, got ${shown(device)}.`,
      );
    }
    this.device = device;
  }

  /** The computation. Call it through `call`, which runs hooks and frees temporaries. */
  abstract forward(...args: Args): Output | Promise<Output>;

  /**
   * Sets its own parameters, not its children's, to new initial values; those that share a table
   * with another module leave it to the owner. Layers with parameters have it.
   */
  resetOwnParameters?(init: ParameterInit): void;

  /**
   * Runs forward in a scope of its own: what it made and neither returned nor saved for backward
   * is freed at its end.
   */
  async call(...args: Args): Promise<Output> {
    const output = await this.device.scope(async () => {
      for (const hook of this.#before) {
        await hook(args);
      }
      const output = await this.forward(...args);
      for (const hook of this.#after) {
        await hook(output);
      }
      return output;
    });
    for (const hook of this.#afterScope) {
      await hook(output);
    }
    return output;
  }

  /** Adds hooks around forward; those of one kind run in the order added. Returns their removal. */
  aroundForward(hooks: {
    readonly before?: BeforeForward;
    readonly after?: AfterForward;
    readonly afterScope?: AfterScope;
  }): () => void {
    if (hooks.before !== undefined) {
      this.#before.push(hooks.before);
    }
    if (hooks.after !== undefined) {
      this.#after.push(hooks.after);
    }
    if (hooks.afterScope !== undefined) {
      this.#afterScope.push(hooks.afterScope);
    }
    return () => {
      remove(this.#before, hooks.before);
      remove(this.#after, hooks.after);
      remove(this.#afterScope, hooks.afterScope);
    };
  }

  // ---- what it owns --------------------------------------------------------------------------

  /** Registers a leaf as a trainable parameter; the module owns it, beyond any scope. */
  protected parameter(name: string, tensor: Tensor): Tensor {
    tensor.keep();
    tensor.storage.tag = 'parameter';
    tensor.requiresGrad = true;
    this.#parameters.set(name, tensor);
    return tensor;
  }

  /** Registers a parameter that another module of the same tree owns (weight tying). */
  protected sharedParameter(name: string, tensor: Tensor): Tensor {
    this.#parameters.set(name, tensor);
    return tensor;
  }

  /** Registers state that is saved but not trained; the module owns it, beyond any scope. */
  protected buffer(name: string, tensor: Tensor): Tensor {
    tensor.keep();
    tensor.storage.tag = 'parameter';
    this.#buffers.set(name, tensor);
    return tensor;
  }

  protected child<M extends Module>(name: string, module: M): M {
    this.#children.set(name, module);
    return module;
  }

  /**
   * Puts another module in a child's place (wrapping), also in the properties that hold the child.
   * The name must exist.
   */
  replaceChild(name: string, module: Module): void {
    const child = this.#children.get(name);
    if (child === undefined) {
      throw new RangeError(`replaceChild: no child is named '${name}'.`);
    }
    this.#children.set(name, module);
    const fields = this as Record<string, unknown>;
    for (const [key, value] of Object.entries(fields)) {
      if (value === child) {
        fields[key] = module;
      }
    }
  }

  /** The module's own children by name, in order. */
  children(): ReadonlyMap<string, Module> {
    return this.#children;
  }

  /** The module's own parameters by name, not its children's. */
  ownParameters(): ReadonlyMap<string, Tensor> {
    return this.#parameters;
  }

  ownBuffers(): ReadonlyMap<string, Tensor> {
    return this.#buffers;
  }

  /** This module and all below, outer first, with their paths ('' for this one); each once. */
  namedModules(prefix = ''): [string, Module][] {
    const found: [string, Module][] = [];
    const seen = new Set<Module>();
    const visit = (module: Module, path: string): void => {
      if (seen.has(module)) {
        return;
      }
      seen.add(module);
      found.push([path, module]);
      for (const [name, child] of module.children()) {
        visit(child, joinPath(path, module.childPrefix(name)));
      }
    };
    visit(this, prefix);
    return found;
  }

  /** How a child's name shows in paths; wrappers return '' so that they leave no trace. */
  childPrefix(name: string): string {
    return name;
  }

  /** All parameters with their paths, in module order; a shared one once, under its first path. */
  namedParameters(): [string, Tensor][] {
    return this.#named((module) => module.ownParameters());
  }

  namedBuffers(): [string, Tensor][] {
    return this.#named((module) => module.ownBuffers());
  }

  parameters(): Tensor[] {
    return this.namedParameters().map(([, tensor]) => tensor);
  }

  #named(own: (module: Module) => ReadonlyMap<string, Tensor>): [string, Tensor][] {
    const seen = new Set<Tensor>();
    const found: [string, Tensor][] = [];
    for (const [path, module] of this.namedModules()) {
      for (const [name, tensor] of own(module)) {
        if (seen.has(tensor)) {
          continue;
        }
        seen.add(tensor);
        found.push([joinPath(path, name), tensor]);
      }
    }
    return found;
  }

  // ---- modes ---------------------------------------------------------------------------------

  get isTraining(): boolean {
    return this.#isTraining;
  }

  /** Switches this module and all below to training (default) or evaluation. Returns itself. */
  train(isTraining = true): this {
    for (const [, module] of this.namedModules()) {
      module.#isTraining = isTraining;
    }
    return this;
  }

  eval(): this {
    return this.train(false);
  }

  /**
   * Casts float parameters and buffers to `dtype`, in place. Returns itself.
   * @throws {NnConfigError} for parameters with a gradient, and sharded or packed ones; nothing is
   * cast
   */
  to(dtype: 'f32' | 'f16' | 'bf16'): this {
    const named = [...this.namedParameters(), ...this.namedBuffers()];
    for (const [name, { grad, piece }] of named) {
      if (grad === undefined && piece === undefined) {
        continue;
      }
      const got = grad === undefined ? 'a sharded or packed parameter' : 'a gradient';
      throw new NnConfigError(
        `module.to: expected plain tensors without gradients, got ${got} at '${name}'. Cast before wrapping and between steps.`,
      );
    }
    for (const [, tensor] of named) {
      castInPlace(tensor, dtype);
    }
    return this;
  }

  /** Frees all parameters' gradients. */
  zeroGrad(): void {
    clearGradients(this.parameters());
  }

  /** Frees parameters, gradients and buffers. The module is unusable afterwards. */
  dispose(): void {
    this.zeroGrad();
    // Packed and sharded parameters belong to who packed or sharded them.
    for (const tensor of this.parameters()) {
      if (tensor.piece === undefined) {
        tensor.dispose();
      }
    }
    for (const [, tensor] of this.namedBuffers()) {
      tensor.dispose();
    }
    for (const [, module] of this.namedModules()) {
      module.releaseOwned();
    }
  }

  /**
   * Frees what a wrapper owns beyond parameters and buffers, such as shards: called by dispose of
   * the module itself and of any around it, maybe again.
   */
  protected releaseOwned(): void {}

  [Symbol.dispose](): void {
    this.dispose();
  }
}

/** Joins two parts of a path with a dot; an empty part leaves no dot. */
export function joinPath(prefix: string, name: string): string {
  if (prefix === '') {
    return name;
  }
  return name === '' ? prefix : `${prefix}.${name}`;
}

function remove<T>(list: T[], item: T | undefined): void {
  const index = item === undefined ? -1 : list.indexOf(item);
  if (index >= 0) {
    list.splice(index, 1);
  }
}
