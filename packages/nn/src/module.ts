// A module has named parameters, buffers and children, and a forward. Wrappers for sharding,
// offload and checkpointing hook into `call`, never into `forward`.

import { type Device, StateError, type Tensor } from '@shardweave/tensor-core';
import { DEVICE, shown } from './check-options.js';
import { NnConfigError } from './errors.js';
import { clearGradients } from './flat/clear-gradients.js';
import { castInPlace } from './parameters/cast-in-place.js';
import { joinPath } from './parameters/join-path.js';
import type { ParameterInit } from './parameters/parameter-init.js';

/**
 * A hook that is awaited before a module's forward, with its arguments. It may wait for the
 * parameters to be gathered, for instance. An array that it returns takes the place of the
 * arguments, for later hooks too.
 */
export type BeforeForward = (
  args: readonly unknown[],
) => void | readonly unknown[] | Promise<void> | Promise<readonly unknown[]>;
/**
 * A hook that is awaited after a module's forward, with its result, before the module's scope ends.
 */
export type AfterForward = (output: unknown) => void | Promise<void>;
/**
 * A hook that is awaited after the module's scope has ended. Of the tensors that forward made, only
 * those that it returned or saved for backward are left then. It is not called where forward or
 * another hook threw.
 */
export type AfterScope = (output: unknown) => void | Promise<void>;

/** Hooks around a module's forward. */
interface ModuleHooks {
  readonly before?: BeforeForward;
  readonly after?: AfterForward;
  readonly afterScope?: AfterScope;
}

const BRAND = Symbol.for('@shardweave/nn/Module');

/** Whether `value` is a module, no matter which copy of this package made it. */
export function isModule(value: unknown): value is Module {
  return typeof value === 'object' && value !== null && BRAND in value;
}

/**
 * @param expected what the caller takes
 * @throws {NnConfigError} naming the value that is not a module
 */
export function checkModules(
  owner: string,
  modules: unknown,
  expected = 'an array of modules',
): void {
  if (!Array.isArray(modules)) {
    throw new NnConfigError(
      `${owner}: expected ${expected}, got ${shown(modules)}.${moduleHint(modules)}`,
    );
  }
  modules.forEach((module: unknown, i) => {
    if (isModule(module)) {
      return;
    }
    throw new NnConfigError(`${owner}: expected a module at index ${i}, got ${shown(module)}.`);
  });
}

/** What to do about a value that is no module, after a space; '' where that is not known. */
export function moduleHint(value: unknown): string {
  if (value instanceof Promise) {
    return ' Await it.';
  }
  const isHandle = typeof value === 'object' && value !== null && 'flats' in value;
  return isHandle ? ' packParameters changes the model in place: give the model.' : '';
}

/**
 * Refuses what cannot be wrapped.
 * @param ConfigError the class of the package that wraps
 */
export function requireModule(
  owner: string,
  value: unknown,
  ConfigError: new (message: string) => Error,
): asserts value is Module {
  if (!isModule(value)) {
    throw new ConfigError(`${owner}: expected a module, got ${shown(value)}.${moduleHint(value)}`);
  }
}

/**
 * The base of all layers and models. A subclass registers what it owns in its constructor
 * (`this.weight = this.parameter('weight', tensor)`) and implements forward. Users run `await
 * module.call(x)`.
 */
// biome-ignore lint/suspicious/noExplicitAny: a plain `Module` stands for one of any signature
export abstract class Module<Args extends readonly any[] = any, Output = any> {
  readonly [BRAND] = true;
  readonly device: Device;
  /** Whether this module is in training mode; `train` and `eval` also switch those below it. */
  isTraining = true;
  /** What it owns, by name. */
  readonly #own = {
    parameters: new Map<string, Tensor>(),
    buffers: new Map<string, Tensor>(),
    children: new Map<string, Module>(),
  };
  readonly #hooks: ModuleHooks[] = [];

  constructor(device: Device) {
    if (!DEVICE.holds(device)) {
      throw new NnConfigError(
        `${new.target.name}: expected a Device as its first argument, got ${shown(device)}.`,
      );
    }
    this.device = device;
  }

  /**
   * The computation. Run it through `call`, which also runs the hooks and frees temporary tensors.
   */
  abstract forward(...args: Args): Output | Promise<Output>;

  /**
   * Sets the module's own parameters to new initial values; those of its children are not touched.
   * A shared parameter is set by the module that owns it. Layers with parameters implement this.
   */
  resetOwnParameters?(init: ParameterInit): void;

  /**
   * Runs forward in a scope of its own. Tensors that forward made and neither returned nor saved
   * for backward are freed when the scope ends.
   * @throws {StateError} beside a backward that was not awaited, which would leave it without a
   * graph. A rule of that backward, such as a checkpoint's, may run it
   */
  async call(...args: Args): Promise<Output> {
    const { isInBackward, isInHook, ruleInProgress } = this.device.autograd;
    if (isInBackward && !isInHook && ruleInProgress === undefined) {
      throw new StateError(
        `${this.constructor.name}.call: expected the backward before it to have ended, got one that is running. Await it: await loss.backward().`,
      );
    }
    if (this.#hooks.length === 0) {
      return this.device.scope(() => this.forward(...args));
    }
    const output = await this.device.scope(() => this.#forwardWithHooks(args));
    for (const { afterScope } of this.#hooks) {
      if (afterScope !== undefined) {
        await afterScope(output);
      }
    }
    return output;
  }

  async #forwardWithHooks(args: Args): Promise<Output> {
    let given: readonly unknown[] = args;
    for (const { before } of this.#hooks) {
      if (before !== undefined) {
        given = argumentsFrom(await before(given)) ?? given;
      }
    }
    const output = await this.forward(...(given as Args));
    for (const { after } of this.#hooks) {
      if (after !== undefined) {
        await after(output);
      }
    }
    return output;
  }

  /**
   * Adds hooks around forward. Hooks of one kind run in the order in which they were added. Returns
   * a function that removes them.
   */
  aroundForward(hooks: ModuleHooks): () => void {
    this.#hooks.push(hooks);
    return () => {
      const index = this.#hooks.indexOf(hooks);
      if (index >= 0) {
        this.#hooks.splice(index, 1);
      }
    };
  }

  // ---- what it owns --------------------------------------------------------------------------

  /**
   * Registers a leaf as a trainable parameter. The module owns it from now on, beyond any scope.
   * Its name is its path below the outermost module that has it.
   */
  protected parameter(name: string, tensor: Tensor): Tensor {
    tensor.keep();
    tensor.name = name;
    tensor.storage.tag = 'parameter';
    tensor.requiresGrad = true;
    this.#own.parameters.set(name, tensor);
    return tensor;
  }

  /** Registers a parameter that another module of the same tree owns, such as a tied weight. */
  protected sharedParameter(name: string, tensor: Tensor): Tensor {
    this.#own.parameters.set(name, tensor);
    return tensor;
  }

  /**
   * Registers a tensor that is saved but not trained. The module owns it from now on, beyond any
   * scope.
   */
  protected buffer(name: string, tensor: Tensor): Tensor {
    tensor.keep();
    tensor.storage.tag = 'parameter';
    this.#own.buffers.set(name, tensor);
    return tensor;
  }

  protected child<M extends Module>(name: string, module: M): M {
    this.#own.children.set(name, module);
    for (const [path, tensor] of module.namedParameters()) {
      tensor.name = joinPath(this.childPrefix(name), path);
    }
    return module;
  }

  /**
   * Replaces a child by another module, such as a wrapper around it. Properties of this module that
   * hold the child then hold the replacement.
   * @throws {RangeError} where no child has this name
   */
  replaceChild(name: string, module: Module): void {
    const child = this.#own.children.get(name);
    if (child === undefined) {
      throw new RangeError(`replaceChild: no child is named '${name}'.`);
    }
    this.#own.children.set(name, module);
    const fields = this as Record<string, unknown>;
    for (const [key, value] of Object.entries(fields)) {
      if (value === child) {
        fields[key] = module;
      }
    }
  }

  /** The module's own children by name, in the order in which they were registered. */
  children(): ReadonlyMap<string, Module> {
    return this.#own.children;
  }

  /** The module's own parameters by name, without those of its children. */
  ownParameters(): ReadonlyMap<string, Tensor> {
    return this.#own.parameters;
  }

  ownBuffers(): ReadonlyMap<string, Tensor> {
    return this.#own.buffers;
  }

  /** This module ('') and all modules below it with their paths, outer modules first, each once. */
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

  /**
   * The part of a path that stands for a child. Wrappers return '' so that paths do not show them.
   */
  childPrefix(name: string): string {
    return name;
  }

  /**
   * All parameters with their paths, in module order. A shared one appears once, under its first
   * path.
   */
  namedParameters(): [string, Tensor][] {
    return namedTensors(this, (module) => module.ownParameters());
  }

  namedBuffers(): [string, Tensor][] {
    return namedTensors(this, (module) => module.ownBuffers());
  }

  parameters(): Tensor[] {
    return this.namedParameters().map(([, tensor]) => tensor);
  }

  // ---- modes ---------------------------------------------------------------------------------

  /**
   * Switches this module and all below it to training (default) or evaluation. Returns the module.
   */
  train(isTraining = true): this {
    for (const [, module] of this.namedModules()) {
      module.isTraining = isTraining;
    }
    return this;
  }

  eval(): this {
    return this.train(false);
  }

  /**
   * Casts all float parameters and buffers to `dtype`, in place. Returns the module.
   * @throws {NnConfigError} where a parameter has a gradient, or is sharded or packed; nothing is
   * cast then
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

  /** Frees the gradients of all parameters. */
  zeroGrad(): void {
    clearGradients(this.parameters());
  }

  /** Frees parameters, gradients and buffers. The module cannot be used afterwards. */
  dispose(): void {
    this.zeroGrad();
    // Packed and sharded parameters belong to whatever packed or sharded them.
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
   * Frees what a wrapper owns besides parameters and buffers, such as shards. It is called when
   * this module or one around it is disposed, possibly more than once.
   */
  protected releaseOwned(): void {}

  [Symbol.dispose](): void {
    this.dispose();
  }
}

/**
 * The arguments that a hook has returned, if it has.
 * @throws {NnConfigError} for anything else
 */
function argumentsFrom(returned: unknown): readonly unknown[] | undefined {
  if (returned === undefined || Array.isArray(returned)) {
    return returned;
  }
  throw new NnConfigError(
    `module.call: expected a hook before forward to return an array of arguments or nothing, got ${shown(returned)}. Return [x] for one argument.`,
  );
}

/** What the modules of a tree own, with paths, each tensor once. */
function namedTensors(
  root: Module,
  own: (module: Module) => ReadonlyMap<string, Tensor>,
): [string, Tensor][] {
  const found = new Map<Tensor, string>();
  for (const [path, module] of root.namedModules()) {
    for (const [name, tensor] of own(module)) {
      if (!found.has(tensor)) {
        found.set(tensor, joinPath(path, name));
      }
    }
  }
  return [...found].map(([tensor, path]) => [path, tensor]);
}
