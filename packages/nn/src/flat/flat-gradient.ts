// The gradients of several leaves, added up in one storage during backward. The owner takes the
// whole when it is complete. Where it goes then (to other ranks, a store, the optimizer) is not
// known here.
//
// Note [a flat gradient's storage]
// It comes into being with the first contribution of a backward. A first contribution is cast into
// its place, or written there by the op itself; later ones are added. Pads hold zeros, for whole
// flats are reduced and are in norms. With pads all is zeroed at the beginning; without, what no
// leaf has contributed to is zeroed when the whole is taken, which mostly is nothing.

import {
  byteSize,
  type Device,
  type DType,
  type GradSink,
  type Pass,
  StateError,
  type Storage,
  Tensor,
} from '@shardweave/tensor-core';
import { hasFlatGradient } from '../parameter-place.js';
import { dropGradient } from './clear-gradients.js';
import { encodingOf } from './encoded-parameter.js';
import type { FlatLayout } from './flat-layout.js';
import { flatHomeOf } from './homes/flat-home.js';

/**
 * What a FlatGradient is made of: the leaves with their places in the whole, and what its owner is
 * told while a backward runs.
 */
export interface FlatGradientOptions {
  readonly device: Device;
  readonly layout: FlatLayout;
  /** In the layout's order. */
  readonly leaves: readonly Tensor[];
  /** The owner of its leaves, for code that finds the leaves in a module. */
  readonly owner?: object;
  /**
   * In what dtype contributions add up, asked for the first one; undefined: no op may write one
   * itself.
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
  /** Leaves whose place has values or will have them, those of #contributed included. */
  readonly #written = new Set<Tensor>();
  /** Leaves whose gradient was taken, is part of their flat's, and was not cleared since. */
  readonly #resting = new Set<Tensor>();
  readonly #hasPads: boolean;
  #whole: Storage | undefined;
  #pass: Pass | undefined;
  #expected = 0;
  /** Whether places in the whole that nobody has written are zeros. */
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
   * Notes how many leaves will get a gradient in `pass`. Called once for it, at the latest by the
   * first contribution.
   */
  beginPass(pass: Pass): void {
    if (this.#pass === pass) {
      return;
    }
    this.#pass = pass;
    this.#forgetDropped();
    this.#expected = this.#options.leaves.filter((leaf) => pass.reached.has(leaf)).length;
    this.#options.onPass?.(pass);
  }

  /** Where an op may write a leaf's first contribution itself; undefined where it is converted. */
  target(leaf: Tensor): Tensor | undefined {
    requireFloat(leaf);
    this.#resume();
    const dtype = this.#whole?.dtype ?? this.#options.dtype();
    // Kernels write whole words: half of the last one may be a pad, which stays zero.
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

  /** Adds one contribution of any float dtype: copied, unless an op has written it in place. */
  add(leaf: Tensor, gradient: Tensor): void {
    requireFloat(leaf);
    this.#resume();
    const whole = this.#wholeOrBegin();
    this.#contributed.add(leaf);
    if (gradient.storage === whole || leaf.size === 0) {
      return;
    }
    const { backend } = this.#options.device;
    const out = whole.view(this.#offsetOf.get(leaf)!, leaf.size);
    const x = gradient.view();
    if (this.#written.has(leaf)) {
      const walk = { shape: [leaf.size], aStrides: [1], bStrides: [1] };
      backend.run('binary', { kind: 'add', a: out, b: x, out, ...walk });
    } else {
      backend.run('cast', { x, out });
      this.#written.add(leaf);
    }
  }

  final(_leaf: Tensor, pass: Pass): void {
    this.beginPass(pass);
    this.#expected -= 1;
    if (this.#expected === 0) {
      this.#options.onFinal?.(pass);
    }
  }

  /** Whether it holds a gradient of the leaf that nobody has taken yet. */
  hasContributed(leaf: Tensor): boolean {
    return this.#contributed.has(leaf);
  }

  /** Whether the flat's gradient includes one of this leaf; places of other leaves are zeros. */
  hasGradient(leaf: Tensor): boolean {
    return hasFlatGradient(flatOf(leaf)) && this.#restingLeaves().has(leaf);
  }

  /** A gradient that somebody assigned to the flat, without a backward, counts for all leaves. */
  #restingLeaves(): ReadonlySet<Tensor> {
    return this.#resting.size > 0 ? this.#resting : new Set(this.#options.leaves);
  }

  /** A flat's gradient may be dropped by others than by `clear`, such as a failure. */
  #forgetDropped(): void {
    const [first] = this.#resting;
    if (first !== undefined && !hasFlatGradient(flatOf(first))) {
      this.#resting.clear();
    }
  }

  // ---- the whole -------------------------------------------------------------------------------

  /**
   * Hands the whole over, complete: the caller releases it. Undefined where nothing was
   * contributed.
   * @param options.leaves those that have a gradient, zeros where nothing was contributed here.
   * Default: those that were contributed to
   */
  take(options: { readonly leaves?: Iterable<Tensor> } = {}): Storage | undefined {
    const whole = options.leaves === undefined ? this.#whole : this.#wholeOrBegin();
    if (whole === undefined) {
      return undefined;
    }
    if (!this.#isZeroed) {
      for (const leaf of this.#options.leaves) {
        if (!this.#contributed.has(leaf)) {
          this.#zero(whole, this.#offsetOf.get(leaf)!, leaf.size);
        }
      }
    }
    for (const leaf of options.leaves ?? this.#contributed) {
      this.#resting.add(leaf);
    }
    this.#forget();
    return whole;
  }

  /** Forgets leaves' gradients, those that nobody has taken and those in their flat's. */
  clear(leaves: readonly Tensor[]): void {
    this.#clearWhole(leaves.filter((leaf) => this.#contributed.delete(leaf)));
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
        this.#zero(flat.grad.storage, start, length);
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
      this.#zero(this.#whole, this.#offsetOf.get(leaf)!, leaf.size);
    }
  }

  /** Drops what is not complete, after a failed backward. */
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
   * Goes on with what earlier backwards have left: the places of leaves without a gradient are
   * zeros.
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
    whole.fill();
    this.#isZeroed = this.#hasPads;
    if (this.#hasPads) {
      device.backend.run('fill', { out: whole.view(), value: 0 });
    }
    return whole;
  }

  #zero(storage: Storage, start: number, length: number): void {
    if (length > 0) {
      const out = storage.view(start, length);
      this.#options.device.backend.run('fill', { out, value: 0 });
    }
  }
}

/** @throws {StateError} for one whose values are not what rests */
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
