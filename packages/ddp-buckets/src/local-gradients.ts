// Gradients of backwards that are not reduced (noSync, disableAllreduce): they add up here until
// the next reduction takes them along. Where a parameter has no other gradient they are its `grad`.

import { cast, type Tensor } from '@shardweave/tensor-core';

interface LocalGradient {
  readonly sum: Tensor;
  /** Whether it was put in `grad`, and is gone when that has changed. */
  readonly isShown: boolean;
}

export class LocalGradients {
  readonly #sums = new Map<Tensor, LocalGradient>();
  /** The leaves whose sums the backward under way has added to, or taken. */
  readonly #touched = new Set<Tensor>();
  /**
   * The leaves that a failed backward has touched: parts of it are in their sums, or the sums are
   * gone.
   */
  readonly #torn = new Set<Tensor>();

  /** Whether a failed backward has left sums that are neither with nor without it. */
  get areTorn(): boolean {
    return this.#torn.size > 0;
  }

  /** Hears that a backward begins. */
  beginPass(): void {
    this.#touched.clear();
  }

  /** Hears that the backward has failed. */
  failPass(): void {
    for (const leaf of this.#touched) {
      this.#torn.add(leaf);
    }
    this.#touched.clear();
  }

  has(leaf: Tensor): boolean {
    return this.#current(leaf) !== undefined;
  }

  add(leaf: Tensor, gradient: Tensor): void {
    const { device } = leaf;
    this.#touched.add(leaf);
    const before = this.#current(leaf);
    if (before !== undefined) {
      device.addInPlace(before.sum, gradient);
      return;
    }
    const sum = device.noGrad(() => cast(gradient, leaf.dtype, { copy: true })).keep();
    sum.storage.tag = 'gradient';
    const isShown = leaf.grad === undefined;
    if (isShown) {
      leaf.grad = sum;
    }
    this.#sums.set(leaf, { sum, isShown });
  }

  /** Hands the sum over: the caller disposes it, and it is no longer the parameter's `grad`. */
  take(leaf: Tensor): Tensor | undefined {
    const current = this.#current(leaf);
    this.#sums.delete(leaf);
    if (current !== undefined) {
      this.#touched.add(leaf);
    }
    if (current?.isShown === true) {
      leaf.grad = undefined;
    }
    return current?.sum;
  }

  /** Forgets gradients that are being zeroed; whoever zeroes frees what `grad` shows. */
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

  #current(leaf: Tensor): LocalGradient | undefined {
    const known = this.#sums.get(leaf);
    if (known === undefined || !known.isShown || leaf.grad === known.sum) {
      return known;
    }
    this.#sums.delete(leaf); // replaced or dropped by the caller
    return undefined;
  }
}
