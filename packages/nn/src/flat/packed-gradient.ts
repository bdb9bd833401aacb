// The gradient of packed parameters: what a backward brings is added up in the dtype of
// computation, and then becomes the flat's own f32 gradient or is added to it. A wrapper that adds
// up gradients elsewhere, over ranks, delivers them here.

import { type DType, type Storage, Tensor } from '@shardweave/tensor-core';
import { FlatGradient } from './flat-gradient.js';
import { alignElements, type FlatLayout } from './layout/flat-layout.js';

/** The place where the gradient of a leaf lies in a storage, with the leaf's padding after it. */
export interface DeliveredLeaf {
  readonly leaf: Tensor;
  /** The first element of its gradient. */
  readonly offset: number;
}

export interface PackedGradientOptions {
  /** f32 [elements]. */
  readonly flat: Tensor;
  readonly layout: FlatLayout;
  /** The leaves, in the order of the layout. */
  readonly leaves: readonly Tensor[];
  /** The dtype of the leaves, in which contributions of one backward add up. */
  readonly dtype: DType;
}

/** Leaves that lie one after the other both in a storage and in their flat. */
interface DeliveredRun {
  readonly offset: number;
  readonly start: number;
  length: number;
  /** Whether the flat's gradient has values there already. */
  readonly isAdded: boolean;
}

/** The sink of packed parameters, which fills the gradient of their flat. */
export class PackedGradient extends FlatGradient {
  readonly #flat: Tensor;
  readonly #places: readonly DeliveredLeaf[];

  constructor({ flat, layout, leaves, dtype }: PackedGradientOptions) {
    super({
      device: flat.device,
      layout,
      leaves,
      dtype: () => dtype,
      // Contributions in f32 are added to the gradient that is there.
      earlier: () => (dtype === 'f32' ? flat.grad?.storage : undefined),
      onPass: (pass) => {
        pass.onEnd(() => this.#rest());
        pass.onFailure(() => this.reset());
      },
      // Where the flat has a gradient, the sum needs no memory for longer. A first one is made when
      // the backward has freed its activations.
      onFinal: () => {
        if (flat.grad !== undefined) {
          this.#rest();
        }
      },
    });
    this.#flat = flat;
    this.#places = leaves.map((leaf, i) => ({ leaf, offset: layout.offsets[i]! }));
  }

  /** Makes the sum of a backward the flat's gradient, or adds it to that. */
  #rest(): void {
    const flat = this.#flat;
    const runs = this.#runsOf(this.#places.filter(({ leaf }) => this.hasContributed(leaf)));
    const sum = this.take();
    if (sum === undefined) {
      return;
    }
    if (sum === flat.grad?.storage) {
      sum.release(); // the backward has continued it
    } else if (sum.dtype === 'f32' && flat.grad === undefined) {
      flat.grad = new Tensor(sum, [flat.size]).markKept();
    } else {
      this.#write(sum, runs, 1);
      sum.release();
    }
  }

  /**
   * Adds gradients times `scale` to those of the leaves, in f32 and rounded once.
   * @param leaves in the order of their places in `from`, padding after each of them
   */
  deliver(from: Storage, leaves: readonly DeliveredLeaf[], scale: number): void {
    this.forgetDropped();
    const runs = this.#runsOf(leaves);
    this.noteResting(leaves.map(({ leaf }) => leaf));
    this.#write(from, runs, scale);
  }

  /** Joins leaves to runs, for each of which one kernel is enough. */
  #runsOf(leaves: readonly DeliveredLeaf[]): DeliveredRun[] {
    const runs: DeliveredRun[] = [];
    for (const { leaf, offset } of leaves) {
      const start = leaf.piece!.start;
      const length = alignElements(leaf.size);
      const isAdded = this.hasGradient(leaf);
      const last = runs.at(-1);
      const isNext =
        last !== undefined &&
        last.isAdded === isAdded &&
        last.start + last.length === start &&
        last.offset + last.length === offset;
      if (isNext) {
        last.length += length;
      } else {
        runs.push({ offset, start, length, isAdded });
      }
    }
    return runs.filter(({ length }) => length > 0);
  }

  #write(from: Storage, runs: readonly DeliveredRun[], scale: number): void {
    const flat = this.#flat;
    const { device } = flat;
    flat.grad ??= emptyGradient(flat, { isZeroed: runs[0]?.length !== flat.size });
    const { storage } = flat.grad;
    storage.markWritten();
    for (const { offset, start, length, isAdded } of runs) {
      const x = from.view(offset, length);
      const sum = new Tensor(storage, [length], start);
      const out = sum.view();
      if (!isAdded && scale === 1 && from.dtype === 'f32') {
        device.backend.copy(x.buffer, x.byteOffset, out.buffer, out.byteOffset, length * 4);
      } else if (!isAdded) {
        device.run('affine', { x, out, scale, shift: 0 });
      } else if (scale === 1) {
        device.addInPlace(sum, new Tensor(from, [length], offset));
      } else {
        const scaled = device.storage(length, 'f32', 'gradient');
        scaled.fill();
        device.run('affine', { x, out: scaled.view(), scale, shift: 0 });
        device.addInPlace(sum, new Tensor(scaled, [length]));
        scaled.release();
      }
    }
  }
}

/**
 * The sink of a packed parameter; undefined for any other parameter, and for a packed one whose
 * gradients a wrapper takes.
 */
export function packedGradientOf({ piece, gradSink }: Tensor): PackedGradient | undefined {
  const isPacked = piece?.isPacked === true && gradSink !== undefined && 'deliver' in gradSink;
  return isPacked ? (gradSink as PackedGradient) : undefined;
}

/** A gradient for a flat, with zeros unless all of it is about to be written. */
function emptyGradient(flat: Tensor, { isZeroed }: { readonly isZeroed: boolean }): Tensor {
  const storage = flat.device.storage(flat.size, 'f32', 'gradient');
  storage.fill();
  if (isZeroed) {
    flat.device.run('fill', { out: storage.view(), value: 0 });
  }
  return new Tensor(storage, [flat.size]).markKept();
}
