// What an instance does in backward before the gradients of its outputs and of its inputs.

import type { UseKind } from '@shardweave/nn/flat';
import { type Pass, type Tensor, tensorsIn } from '@shardweave/tensor-core';
import { CallQueue } from '../ranks/call-queue.js';
import { callQueuesOf } from './collective-call.js';
import type { Instance, Tree } from './instance.js';

export class BackwardHooks {
  readonly #instance: Instance;
  /** What its forwards have returned, which may be an input of its next one. */
  readonly #outputs = new WeakSet<Tensor>();

  constructor(instance: Instance) {
    this.#instance = instance;
  }

  /** Makes backward gather the instance's parameters before it uses the gradient of `output`. */
  gatherBefore(output: unknown, tree: Tree): UseKind {
    const { device } = this.#instance.wrapper;
    if (!device.isGradEnabled) {
      return 'unrecorded';
    }
    const hook = (pass: Pass) => this.#beforeBackward(tree, pass);
    for (const tensor of tensorsIn(output)) {
      this.#outputs.add(tensor);
    }
    return device.beforeGradientOf(output, hook) > 0 ? 'recorded' : 'unreached';
  }

  async #beforeBackward(tree: Tree, pass: Pass): Promise<void> {
    const instance = this.#instance;
    if (!tree.isInBackward) {
      await CallQueue.ended(callQueuesOf(tree.instances));
    }
    tree.beginPass(pass);
    instance.activity.beginBackward();
    for (const unit of instance.units) {
      unit.gradient.sum.beginPass(pass);
    }
    try {
      await tree.agree();
      await instance.shared.enter(tree, 'backward');
      if (instance.units.length > 0) {
        await tree.scheduler.enter(instance, 'backward');
      }
    } catch (error) {
      throw tree.toFsdpError(error, 'backward');
    }
  }

  /**
   * Frees frozen parameters at the end of the module's backward. They are needed for the gradients
   * of the module's inputs, which come after the last gradient of its parameters; once an input's
   * gradient is passed on, all nodes of the module have run. They stay where that input is what
   * the module returned before, whose backward comes next and reads them again. With
   * findUnusedParameters they stay, too: a rank that takes another way through the model would have
   * to gather them again, and gathers are alike on all.
   */
  dropBefore(inputs: unknown, tree: Tree): void {
    const instance = this.#instance;
    const { device } = instance.wrapper;
    if (
      tree.findsUnused ||
      instance.shared.hasUsers ||
      !device.isGradEnabled ||
      !instance.units.some((unit) => unit.hasFrozen)
    ) {
      return;
    }
    const foreign = tensorsIn(inputs).filter((input) => !this.#outputs.has(input));
    device.beforeGradientOf(foreign, () => {
      if (instance.isDroppedAfterBackward) {
        instance.drop();
      }
    });
  }
}
