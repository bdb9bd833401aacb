// What one device records for backward, and who is told of it: the grad mode, the nodes of the
// graph, and hooks. The engine runs the passes.

import type { Device } from '../device.js';
import { endingWith } from '../ending-with.js';
import { StateError } from '../errors.js';
import type { Storage } from '../memory/storage.js';
import type { Tensor } from '../tensor.js';
import { Engine } from './engine.js';
import { GraphNode, type NodeOptions } from './node.js';
import type { FinalHook, Pass } from './pass.js';

/** The autograd of a device, `device.autograd`: what code that builds on it asks for. */
export class Autograd {
  readonly #device: Device;
  readonly #engine: Engine;
  readonly #finalHooks = new Map<Tensor, FinalHook[]>();
  /** The grad modes, innermost last. Each is an object, so that its end finds the one it began. */
  readonly #modes: { readonly isEnabled: boolean }[] = [];
  #savers: ((storage: Storage) => void)[] = [];
  #nextNodeId = 0;
  #numCalls = 0;

  constructor(device: Device) {
    this.#device = device;
    this.#engine = new Engine(device);
  }

  /** See Device.isGradEnabled. */
  get isGradEnabled(): boolean {
    return this.#modes.at(-1)?.isEnabled ?? true;
  }

  /** See Device.noGrad. */
  noGrad<T>(body: () => T): T {
    return this.#withMode({ isEnabled: false }, body);
  }

  /** Runs `body` recording a graph, also inside noGrad. */
  enableGrad<T>(body: () => T): T {
    return this.#withMode({ isEnabled: true }, body);
  }

  #withMode<T>(mode: { readonly isEnabled: boolean }, body: () => T): T {
    this.#modes.push(mode);
    const restore = () => {
      const index = this.#modes.indexOf(mode);
      this.#modes.splice(index, 1);
      if (index === this.#modes.length) {
        return;
      }
      throw new StateError(
        'noGrad: expected modes to end in the order opposite to their start. Two strands of code use one device at once; await one before starting the other, or give each its own Device.',
      );
    };
    return endingWith(restore, body);
  }

  /** See Device.record. */
  record(options: NodeOptions): void {
    if (!this.isGradEnabled) {
      return;
    }
    const isReached =
      options.inputs.some((input) => input.requiresGrad) || (options.hiddenLeaves?.length ?? 0) > 0;
    if (!isReached) {
      return;
    }
    const node = new GraphNode(this.#nextNodeId++, options);
    this.#device.scopes.current?.nodes.push(node);
    for (const onSaved of this.#savers) {
      for (const { storage } of options.saved) {
        onSaved(storage);
      }
    }
  }

  /** Calls `onSaved` with each storage that an op recorded until the returned removal saves. */
  watchSaved(onSaved: (storage: Storage) => void): () => void {
    this.#savers.push(onSaved);
    return () => {
      this.#savers = this.#savers.filter((other) => other !== onSaved);
    };
  }

  /** See Device.backward. */
  backward(root: Tensor, options: { gradient?: Tensor; retainGraph?: boolean }): Promise<void> {
    return this.#engine.backward(root, options);
  }

  /** See Device.isInBackward. */
  get isInBackward(): boolean {
    return this.#engine.isRunning;
  }

  /**
   * The node whose asynchronous rule is running, such as that of a checkpoint, which runs its
   * module again. Undefined between rules: a forward that runs then is no part of the backward.
   * @internal
   */
  get ruleInProgress(): GraphNode | undefined {
    return this.#engine.ruleInProgress;
  }

  /**
   * Whether a hook of the backward that is running has called the code that asks, and has not
   * waited yet: such code is part of the backward, and not beside one that nobody awaits.
   */
  get isInHook(): boolean {
    return this.#numCalls > 0;
  }

  /** Calls a hook. The engine calls it. */
  callHook<T>(hook: () => T): T {
    this.#numCalls += 1;
    try {
      return hook();
    } finally {
      this.#numCalls -= 1;
    }
  }

  /** Calls `hook` once per backward when all of `leaf`'s gradients are in. Returns its removal. */
  onGradientFinal(leaf: Tensor, hook: FinalHook): () => void {
    const hooks = this.#finalHooks.get(leaf) ?? [];
    this.#finalHooks.set(leaf, [...hooks, hook]);
    return () => {
      const left = (this.#finalHooks.get(leaf) ?? []).filter((other) => other !== hook);
      if (left.length > 0) {
        this.#finalHooks.set(leaf, left);
      } else {
        this.#finalHooks.delete(leaf);
      }
    };
  }

  /** Runs the hooks of onGradientFinal. The engine calls it. */
  notifyFinal(leaf: Tensor, pass: Pass): Promise<void> | undefined {
    const hooks = this.#finalHooks.get(leaf);
    if (hooks === undefined) {
      return undefined;
    }
    // An async wrapper turns a throw into a rejection, so the other hooks are called all the same.
    return Promise.all(hooks.map(async (hook) => this.callHook(() => hook(leaf, pass)))).then(
      () => undefined,
    );
  }
}
