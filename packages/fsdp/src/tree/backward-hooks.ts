// What an instance does in backward before the gradients of its outputs and of its inputs.

import type { UseKind } from '@shardweave/nn/flat';
import { type Pass, tensorsIn } from '@shardweave/tensor-core';
import { CallQueue } from '../ranks/call-queue.js';
import { callQueuesOf } from './collective-call.js';
import type { Instance, Tree } from './instance.js';

/** Makes backward gather the instance's parameters before it uses the gradient of `output`. */
export function gatherBefore(instance: Instance, output: unknown, tree: Tree): UseKind {
  const { device } = instance.wrapper;
  if (!device.isGradEnabled) {
    return 'unrecorded';
  }
  for (const tensor of tensorsIn(output)) {
    instance.outputs.add(tensor);
  }
  const hook = (pass: Pass) => beforeBackward(instance, tree, pass);
  return device.beforeGradientOf(output, hook) > 0 ? 'recorded' : 'unreached';
}

async function beforeBackward(instance: Instance, tree: Tree, pass: Pass): Promise<void> {
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
 * Frees frozen parameters at the end of the module's backward. They are needed for the gradients of
 * the module's inputs, which come after the last gradient of its parameters; once an input's
 * gradient is passed on, all nodes of the module have run. They stay where that input is what the
 * module returned before, whose backward comes next and reads them again. With findUnusedParameters
 * they stay, too: a rank that takes another way through the model would have to gather them again,
 * and gathers are alike on all.
 */
export function dropBefore(instance: Instance, inputs: unknown, tree: Tree): void {
  const { device } = instance.wrapper;
  if (
    tree.findsUnused ||
    instance.shared.hasUsers ||
    !device.isGradEnabled ||
    !instance.units.some((unit) => unit.hasFrozen)
  ) {
    return;
  }
  const foreign = tensorsIn(inputs).filter((input) => !instance.outputs.has(input));
  device.beforeGradientOf(foreign, () => {
    if (instance.isDroppedAfterBackward) {
      instance.drop();
    }
  });
}
