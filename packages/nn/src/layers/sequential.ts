// Modules one after another, named '0', '1' and so on.

import { type Device, type Tensor, tensorsIn } from '@shardweave/tensor-core';
import { checkModules, Module } from '../module.js';

/**
 * Calls each layer with what the one before returned; the first gets all arguments. A subclass may
 * hand them to more: see argumentsOf. A layer's result is freed once the next layer has run, unless
 * that saved or returned it.
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

  /** The layers in order, wrappers in the place of what they wrap. */
  layers(): Module[] {
    return [...this.children().values()];
  }

  /**
   * What the index-th layer is called with: the call's own arguments for the first, what the layer
   * before returned for the others. Wrappers that run the layers themselves (OffloadModel) ask it
   * too.
   * @param previous what the layer before returned; for the first, the call's first argument
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

/** Ends the current scope's hold on tensors that only it needs. */
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
