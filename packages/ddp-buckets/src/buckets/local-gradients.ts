// Gradients of backwards that are not reduced (noSync, disableAllreduce). They add up here until
// the next reduction takes them along. Where a parameter has no other gradient, they are shown as
// its `grad`, unless it is packed: then they add up in f32, and its flat has none of them.

import { masterOf } from '@shardweave/nn/flat';
import { cast, type Tensor } from '@shardweave/tensor-core';
import { DdpStateError } from '../errors.js';

interface LocalGradient {
  readonly sum: Tensor;
  /** Whether the sum was put in `grad`. If so, it is gone when `grad` has changed. */
  readonly isShown: boolean;
}

export class LocalGradients {
  readonly #sums = new Map<Tensor, LocalGradient>();
  /** The leaves whose sums the present backward has begun. */
  readonly #begun = new Set<Tensor>();
  /** The leaves whose sums of earlier backwards the present one has added to, or taken. */
  readonly #touched = new Set<Tensor>();
  /** The leaves of which a failed backward touched such a sum: it holds a part, or is gone. */
  readonly #torn = new Set<Tensor>();

  /** @throws {DdpStateError} where a failed backward has torn what earlier ones had left */
  requireWhole(): void {
    if (this.#torn.size === 0) {
      return;
    }
    throw new DdpStateError(
      'ddp backward: expected the gradients that backwards in noSync left to be whole, got a part of them: a backward that failed since had begun to add to them, or to reduce them. Call zeroGrad and repeat the step.',
    );
  }

  /** Called when a backward begins. */
  beginPass(): void {
    this.#begun.clear();
    this.#touched.clear();
  }

  /** Called when the backward has failed: forgets it where nothing of earlier ones is mixed in. */
  failPass(): void {
    for (const leaf of this.#begun) {
      this.take(leaf)?.dispose();
    }
    for (const leaf of this.#touched) {
      this.#torn.add(leaf);
    }
    this.beginPass();
  }

  has(leaf: Tensor): boolean {
    return this.#current(leaf) !== undefined;
  }

  add(leaf: Tensor, gradient: Tensor): void {
    const { device } = leaf;
    const before = this.#current(leaf);
    if (before !== undefined) {
      this.#touch(leaf);
      device.addInPlace(before.sum, gradient);
      return;
    }
    const { dtype } = masterOf(leaf);
    const sum = device.noGrad(() => cast(gradient, dtype, { copy: true })).keep();
    sum.storage.tag = 'gradient';
    const isShown = leaf.grad === undefined && leaf.piece === undefined;
    if (isShown) {
      leaf.grad = sum;
    }
    this.#sums.set(leaf, { sum, isShown });
    this.#begun.add(leaf);
  }

  /**
   * Hands the sum over to the caller, who disposes it; it is not the parameter's `grad` any more.
   */
  take(leaf: Tensor): Tensor | undefined {
    const current = this.#current(leaf);
    this.#sums.delete(leaf);
    if (current !== undefined) {
      this.#touch(leaf);
    }
    if (current?.isShown === true) {
      leaf.grad = undefined;
    }
    return current?.sum;
  }

  /** Forgets gradients that are being zeroed; the caller frees what `grad` shows. */
  clear(leaves: readonly Tensor[]): void {
    for (const leaf of leaves) {
      this.#torn.delete(leaf);
      const current = this.#sums.get(leaf);
      this.#sums.delete(leaf);
      if (current?.isShown === false) {
        current.sum.dispose();
      }
    }
  }

  #touch(leaf: Tensor): void {
    if (!this.#begun.has(leaf)) {
      this.#touched.add(leaf);
    }
  }

  #current(leaf: Tensor): LocalGradient | undefined {
    const known = this.#sums.get(leaf);
    if (known === undefined || !known.isShown || leaf.grad === known.sum) {
      return known;
    }
    this.#sums.delete(leaf); // the caller has replaced or dropped it
    return undefined;
  }
}
