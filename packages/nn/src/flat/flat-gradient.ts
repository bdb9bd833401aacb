// Adds up the gradients of several leaves in one storage during backward. The owner takes the whole
// when it is complete. Where the gradient then goes (to other ranks, a store, the optimizer) is not
// known here.
//
// Note [a flat gradient's storage]
// The storage is made at the first contribution of a backward. A leaf's first contribution is cast
// into the leaf's place, or the op itself has written it there; later contributions are added.
// Padding holds zeros, because whole flats are reduced and whole flats enter norms. If the layout
// has padding, the whole storage is zeroed at the beginning. If it has none, only the places of
// leaves without a contribution are zeroed when the whole is taken, and mostly there are none.

import {
  byteSize,
  type Device,
  type DType,
  type GradSink,
  type Pass,
  StateError,
  type Storage,
  Tensor,
  type View,
} from '@shardweave/tensor-core';
import { encodingOf } from '../parameters/encoded-parameter.js';
import { dropGradient } from './clear-gradients.js';
import type { FlatLayout } from './layout/flat-layout.js';
import { hasFlatGradient } from './placement.js';
import { flatHomeOf } from './stores/flat-home.js';

/**
 * Options of a FlatGradient: the leaves with their places in the whole, and what its owner is told
 * during backward.
 */
export interface FlatGradientOptions {
  readonly device: Device;
  readonly layout: FlatLayout;
  /** The leaves, in the order of the layout. */
  readonly leaves: readonly Tensor[];
  /** The owner of its leaves, for code that finds the leaves in a module. */
  readonly owner?: object;
  /**
   * The dtype in which contributions add up, asked for at the first one. With undefined no op may
   * write a contribution itself.
   */
  dtype(): DType | undefined;
  /** The whole sum of earlier backwards, to which contributions are added. */
  earlier?(): Storage | undefined;
  /** Called when a backward begins to bring gradients of the leaves. */
  onPass?(pass: Pass): void;
  /** Called before each contribution, and refuses it by throwing. */
  onContribution?(pass: Pass): void;
  /** Called when all gradients that a backward brings are in. */
  onFinal?(pass: Pass): void;
}

/**
 * The gradients of several leaves in one storage, into which backward adds what each leaf gets. See
 * Note [a flat gradient's storage].
 */
export class FlatGradient implements GradSink {
  readonly #options: FlatGradientOptions;
  readonly #offsetOf: ReadonlyMap<Tensor, number>;
  readonly #contributed = new Set<Tensor>();
  /**
   * Leaves whose place has values or is about to get them. Those of #contributed are among them.
   */
  readonly #written = new Set<Tensor>();
  /** Leaves whose gradient was taken into their flat's gradient and has not been cleared since. */
  readonly #resting = new Set<Tensor>();
  readonly #hasPads: boolean;
  #whole: Storage | undefined;
  #pass: Pass | undefined;
  #expected = 0;
  /** Whether places in the whole that have not been written are zeros. */
  #isZeroed = false;

  constructor(options: FlatGradientOptions) {
    const { layout, leaves } = options;
    this.#options = options;
    this.#offsetOf = new Map(leaves.map((leaf, index) => [leaf, layout.offsets[index]!]));
    this.#hasPads = layout.sizes.reduce((sum, size) => sum + size, 0) < layout.elementCount;
  }

  /** The owner of its leaves. */
  get owner(): object | undefined {
    return this.#options.owner;
  }

  // ---- in backward -----------------------------------------------------------------------------

  /**
   * Counts how many leaves will get a gradient in `pass`. It is called once for each pass, at the
   * latest by the first contribution.
   */
  beginPass(pass: Pass): void {
    if (this.#pass === pass) {
      return;
    }
    this.#pass = pass;
    this.forgetDropped();
    this.#expected = this.#options.leaves.filter((leaf) => pass.reached.has(leaf)).length;
    this.#options.onPass?.(pass);
  }

  /**
   * Where an op may write a leaf's first contribution itself; undefined where it must be converted.
   */
  target(leaf: Tensor): Tensor | undefined {
    requireFloat(leaf);
    this.#resume();
    const dtype = this.#whole?.dtype ?? this.#options.dtype();
    // Kernels write whole words, and half of the last word may be padding, which must stay zero.
    const isWhole = leaf.size > 0 && (leaf.size * byteSize(leaf.dtype)) % 4 === 0;
    if (dtype !== leaf.dtype || !isWhole || this.#written.has(leaf)) {
      return undefined;
    }
    this.#whole ??= this.#begin(dtype);
    this.#written.add(leaf);
    return new Tensor(this.#whole, leaf.shape, this.#offsetOf.get(leaf)!);
  }

  accept(leaf: Tensor, gradient: Tensor, pass: Pass): void {
    this.#options.onContribution?.(pass);
    this.beginPass(pass);
    this.add(leaf, gradient);
  }

  /**
   * Adds one contribution of any float dtype. It is copied, unless an op has written it in place.
   * @param left what earlier backwards have left elsewhere, which is added with it
   */
  add(leaf: Tensor, gradient: Tensor, left?: Tensor): void {
    requireFloat(leaf);
    this.#resume();
    const whole = this.#wholeOrBegin();
    this.#contributed.add(leaf);
    if (leaf.size === 0) {
      return;
    }
    const { backend } = this.#options.device;
    const out = whole.view(this.#offsetOf.get(leaf)!, leaf.size);
    const walk = { shape: [leaf.size], aStrides: [1], bStrides: [1] };
    const sum = (a: View, b: View) => backend.run('binary', { kind: 'add', a, b, out, ...walk });
    const isInPlace = gradient.storage === whole;
    if (this.#written.has(leaf)) {
      for (const term of [
        ...(isInPlace ? [] : [gradient]),
        ...(left === undefined ? [] : [left]),
      ]) {
        sum(out, term.view());
      }
      return;
    }
    this.#written.add(leaf);
    if (left === undefined) {
      backend.run('cast', { x: gradient.view(), out });
    } else {
      sum(left.view(), gradient.view());
    }
  }

  final(_leaf: Tensor, pass: Pass): void {
    this.beginPass(pass);
    this.#expected -= 1;
    if (this.#expected === 0) {
      this.#options.onFinal?.(pass);
    }
  }

  /** Whether there is a gradient of the leaf that has not been taken yet. */
  hasContributed(leaf: Tensor): boolean {
    return this.#contributed.has(leaf);
  }

  /**
   * Whether the flat's gradient includes one of this leaf. The places of other leaves are zeros.
   */
  hasGradient(leaf: Tensor): boolean {
    return hasFlatGradient(flatOf(leaf)) && this.#restingLeaves().has(leaf);
  }

  /** Notes that the flat's gradient includes one of these leaves from now on. */
  protected noteResting(leaves: Iterable<Tensor>): void {
    for (const leaf of [...this.#assignedLeaves(), ...leaves]) {
      this.#resting.add(leaf);
    }
  }

  /**
   * If a flat has got a gradient by assignment and not by a backward, it counts as one of all
   * leaves.
   */
  #restingLeaves(): ReadonlySet<Tensor> {
    return this.#resting.size > 0 ? this.#resting : new Set(this.#options.leaves);
  }

  /** The trained leaves, where their flat has got a gradient by assignment; else none. */
  #assignedLeaves(): readonly Tensor[] {
    const trained = this.#options.leaves.filter((leaf) => leaf.requiresGrad);
    const isHere = trained.some((leaf) => hasFlatGradient(flatOf(leaf)));
    return isHere && this.#resting.size === 0 ? trained : [];
  }

  /**
   * Forgets gradients of a flat that something other than `clear` has dropped, such as a failure.
   */
  protected forgetDropped(): void {
    const [first] = this.#resting;
    if (first !== undefined && !hasFlatGradient(flatOf(first))) {
      this.#resting.clear();
    }
  }

  // ---- the whole -------------------------------------------------------------------------------

  /**
   * Returns the completed whole, which the caller has to release; undefined where nothing was
   * contributed.
   * @param options.leaves the leaves that have a gradient, which is zeros where nothing was
   * contributed here; default: those with a contribution
   */
  take(options: { readonly leaves?: Iterable<Tensor> } = {}): Storage | undefined {
    const whole = options.leaves === undefined ? this.#whole : this.#wholeOrBegin();
    if (whole === undefined) {
      return undefined;
    }
    if (!this.#isZeroed) {
      for (const leaf of this.#options.leaves) {
        if (!this.#contributed.has(leaf)) {
          zero(whole, this.#offsetOf.get(leaf)!, leaf.size);
        }
      }
    }
    this.noteResting(options.leaves ?? this.#contributed);
    this.#forget();
    return whole;
  }

  /**
   * Forgets the gradients of some leaves: those that have not been taken yet, and those in their
   * flat's gradient.
   */
  clear(leaves: readonly Tensor[]): void {
    this.#clearWhole(leaves.filter((leaf) => this.#contributed.delete(leaf)));
    this.noteResting([]);
    const cleared = leaves.filter((leaf) => this.#resting.delete(leaf));
    const flat = leaves[0]?.piece?.flat;
    if (flat === undefined) {
      return;
    }
    if (this.#resting.size === 0) {
      dropGradient(flat);
    } else if (flat.grad !== undefined) {
      for (const leaf of cleared) {
        const { start, length } = leaf.piece!;
        zero(flat.grad.storage, start, length);
      }
    } else if (cleared.length > 0) {
      flatHomeOf(flat)?.clearGradient(cleared.map((leaf) => leaf.piece!));
    }
  }

  #clearWhole(leaves: readonly Tensor[]): void {
    if (this.#whole === undefined) {
      return;
    }
    if (this.#contributed.size === 0) {
      this.reset();
      return;
    }
    for (const leaf of leaves) {
      this.#written.delete(leaf);
      zero(this.#whole, this.#offsetOf.get(leaf)!, leaf.size);
    }
  }

  /** Drops an incomplete sum after a failed backward. */
  reset(): void {
    this.#whole?.release();
    this.#forget();
    this.#pass = undefined;
  }

  #forget(): void {
    this.#whole = undefined;
    this.#contributed.clear();
    this.#written.clear();
  }

  /**
   * Continues the sum that earlier backwards have left. In it the places of leaves without a
   * gradient are zeros.
   */
  #resume(): void {
    const earlier = this.#whole === undefined ? this.#options.earlier?.() : undefined;
    if (earlier === undefined) {
      return;
    }
    earlier.retain();
    earlier.markWritten();
    this.#whole = earlier;
    this.#isZeroed = true;
    for (const leaf of this.#restingLeaves()) {
      this.#contributed.add(leaf);
      this.#written.add(leaf);
    }
  }

  #wholeOrBegin(): Storage {
    this.#whole ??= this.#begin(this.#options.dtype() ?? 'f32');
    return this.#whole;
  }

  #begin(dtype: DType): Storage {
    const { device, layout } = this.#options;
    const whole = device.storage(layout.elementCount, dtype, 'gradient');
    device.pool.blocks.fill(whole);
    this.#isZeroed = this.#hasPads;
    if (this.#hasPads) {
      device.backend.run('fill', { out: whole.view(), value: 0 });
    }
    return whole;
  }
}

function zero(storage: Storage, start: number, length: number): void {
  if (length > 0) {
    const out = storage.view(start, length);
    storage.device.backend.run('fill', { out, value: 0 });
  }
}

/** @throws {StateError} for a leaf whose values rest encoded */
function requireFloat(leaf: Tensor): void {
  const encoding = encodingOf(leaf);
  if (encoding !== undefined) {
    throw new StateError(
      `gradient: expected '${leaf.name}' to stay frozen, got requiresGrad of a parameter that rests as ${encoding.format}. Train something beside it.`,
    );
  }
}

function flatOf(leaf: Tensor): Tensor {
  return leaf.piece?.flat ?? leaf;
}
