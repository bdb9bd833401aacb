// A chain of modules named '0', '1' and so on, each called with what the one before returned.

import { type Device, type Tensor, tensorsIn } from '@shardweave/tensor-core';
import { checkModules, Module } from '../module.js';

/**
 * Calls its layers one after another. The first layer gets all arguments of the call, and each
 * other layer gets what the one before returned; a subclass may pass more by overriding
 * argumentsOf. A layer's result is freed once the next layer has run, unless that layer saved it
 * for backward or returned it.
 */
// biome-ignore lint/suspicious/noExplicitAny: layers of any signature, as Module has it
export class Sequential<Args extends readonly any[] = any, Output = Tensor> extends Module<
  Args,
  Output
> {
  constructor(device: Device, layers: readonly Module[]) {
    super(device);
    checkModules('Sequential', layers);
    layers.forEach((layer, i) => {
      this.child(String(i), layer);
    });
  }

  /** The layers in order. A layer that has been wrapped (sharded, say) appears as its wrapper. */
  layers(): Module[] {
    return [...this.children().values()];
  }

  /**
   * The arguments that the index-th layer is called with: the call's own for the first layer, and
   * the result of the layer before for the others. Wrappers that run the layers themselves, such as
   * OffloadModel, use it too.
   * @param previous what the layer before returned; for the first layer, the call's first argument
   */
  argumentsOf(index: number, previous: unknown, args: Args): readonly unknown[] {
    return index === 0 ? args : [previous];
  }

  async forward(...args: Args): Promise<Output> {
    const callers = new Set(tensorsIn(args).map((tensor) => tensor.storage));
    let previous: unknown = args[0];
    for (const [index, layer] of this.layers().entries()) {
      const output: unknown = await layer.call(...this.argumentsOf(index, previous, args));
      const kept = new Set([...callers, ...tensorsIn(output).map((tensor) => tensor.storage)]);
      releaseExcept(previous, kept);
      previous = output;
    }
    return previous as Output;
  }
}

/**
 * Ends the current scope's hold on tensors whose storage is not in `kept`. What a graph saved
 * stays.
 */
function releaseExcept(values: unknown, kept: ReadonlySet<Tensor['storage']>): void {
  const seen = new Set(kept);
  for (const tensor of tensorsIn(values)) {
    if (seen.has(tensor.storage)) {
      continue;
    }
    seen.add(tensor.storage);
    tensor.keep().dispose();
  }
}
