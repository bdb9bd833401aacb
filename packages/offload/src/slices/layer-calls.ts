// The arguments that each layer of a model is called with. A Sequential tells them itself, and may
// hand a call's arguments to later layers too, such as the targets of a loss to the head.

import { isModule, type Sequential } from '@shardweave/nn';
import { type Tensor, tensorsIn } from '@shardweave/tensor-core';

export class LayerCalls {
  readonly #numLayers: number;
  readonly #model: Sequential | undefined;

  /**
   * @param model what OffloadModel was given; in a list of modules each gets what the one before
   * returned
   */
  constructor(model: unknown, numLayers: number) {
    this.#numLayers = numLayers;
    this.#model = isModule(model) ? (model as Sequential) : undefined;
  }

  /** The arguments of the layer at `index`; see Sequential.argumentsOf. */
  argumentsOf(index: number, previous: unknown, args: readonly unknown[]): readonly unknown[] {
    if (this.#model?.argumentsOf !== undefined) {
      return this.#model.argumentsOf(index, previous, args);
    }
    return index === 0 ? args : [previous];
  }

  /** The tensors among a call's arguments that the layer at `index` or a later one is given. */
  tensorsFrom(index: number, args: readonly unknown[]): Tensor[] {
    const count = Math.max(0, this.#numLayers - index);
    const given = Array.from({ length: count }, (_, i) => i + index).map((i) =>
      i === 0 ? args : this.argumentsOf(i, undefined, args),
    );
    return tensorsIn(given);
  }
}
