// What each layer of a model is called with. A Sequential says it itself, and may hand a call's
// arguments to more layers than the first: the targets of a loss to the head, for one.

import { isModule, type Sequential } from '@shardweave/nn';
import { type Tensor, tensorsIn } from '@shardweave/tensor-core';

export class LayerCalls {
  readonly #numLayers: number;
  readonly #model: Sequential | undefined;

  /**
   * @param model as OffloadModel gets it: a list of modules hands each what the one before returned
   */
  constructor(model: unknown, numLayers: number) {
    this.#numLayers = numLayers;
    this.#model = isModule(model) ? (model as Sequential) : undefined;
  }

  /** The arguments of the index-th layer; see Sequential.argumentsOf. */
  argumentsOf(index: number, previous: unknown, args: readonly unknown[]): readonly unknown[] {
    if (this.#model?.argumentsOf !== undefined) {
      return this.#model.argumentsOf(index, previous, args);
    }
    return index === 0 ? args : [previous];
  }

  /** Those tensors of a call's arguments that the index-th layer or a later one is given. */
  tensorsFrom(index: number, args: readonly unknown[]): Tensor[] {
    const count = Math.max(0, this.#numLayers - index);
    const given = Array.from({ length: count }, (_, i) => i + index).map((i) =>
      i === 0 ? args : this.argumentsOf(i, undefined, args),
    );
    return tensorsIn(given);
  }
}
