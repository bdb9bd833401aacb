// Modules one after another, named '0', '1' and so on.

import { type Device, type Tensor, tensorsIn } from '@shardweave/tensor-core';
import { checkModules, Module } from '../module.js';

/**
 * Calls each layer with what the one before returned; the first gets all arguments. A layer's
 * result is freed once the next layer has run, unless that saved or returned it.
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

  async forward(...args: Args): Promise<Output> {
    const callers = new Set(tensorsIn(args).map((tensor) => tensor.storage));
    let values: readonly unknown[] = args;
    for (const layer of this.layers()) {
      const output: unknown = await layer.call(...values);
      const kept = new Set([...callers, ...tensorsIn(output).map((tensor) => tensor.storage)]);
      releaseExcept(values, kept);
      values = [output];
    }
    return values[0] as Output;
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
