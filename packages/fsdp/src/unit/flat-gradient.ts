// The full gradient of one flat parameter: contributions of a backward are added up, and the whole
// goes to the bucketer, which hands back the shard's part of the sum over ranks.

import {
  byteSize,
  type Device,
  type DType,
  type Pass,
  type Storage,
  Tensor,
} from '@shardweave/tensor-core';
import type { FlatLayout } from './flat-layout.js';
import type { GradientHome } from './gradient-home.js';
import type { ReduceScatterBucketer } from './reduce-scatter-bucketer.js';
import type { UnitLinks } from './unit-links.js';

/** What gradients are divided by before and after a reduction; read whenever one is made. */
export interface DivideFactors {
  predivide: number;
  postdivide: number;
}

export interface FlatGradientContext {
  /** For errors and traces. */
  readonly name: string;
  readonly device: Device;
  readonly layout: FlatLayout;
  /** The leaves, in the layout's order. */
  readonly leaves: readonly Tensor[];
  /** Takes what is reduced. */
  readonly home: GradientHome;
  /** dtype of gradients on the wire. */
  readonly reduceDType: DType;
  readonly divide: Readonly<DivideFactors>;
  /** Whether its reduction may share a collective with others. */
  readonly isBucketed: boolean;
  /** Open from the first forward on. */
  links(): UnitLinks;
}

export class FlatGradient {
  readonly #context: FlatGradientContext;
  readonly #indexOf: ReadonlyMap<Tensor, number>;
  readonly #contributed = new Set<Tensor>();
  /** Leaves whose place in the whole has values, or will: those of #contributed among them. */
  readonly #written = new Set<Tensor>();
  #whole: Storage | undefined;
  /** Whether what no parameter has contributed to holds zeros already. */
  #isZeroed = false;
  #pass: Pass | undefined;
  #expected = 0;
  /** What was added without a reduction, where that waits. */
  #added: Promise<void> | undefined;

  constructor(context: FlatGradientContext) {
    this.#context = context;
    this.#indexOf = new Map(context.leaves.map((leaf, index) => [leaf, index]));
  }

  /** Notes how many parameters will get a gradient in `pass`. */
  beginPass(pass: Pass): void {
    if (this.#pass === pass) {
      return;
    }
    this.#pass = pass;
    this.#expected = this.#context.leaves.filter((leaf) => pass.reached.has(leaf)).length;
  }

  /** Where an op may write a leaf's first contribution itself; undefined where it is converted. */
  target(leaf: Tensor, options: { readonly isSyncing: boolean }): Tensor | undefined {
    const { layout, reduceDType } = this.#context;
    const dtype = this.#whole?.dtype ?? (options.isSyncing ? reduceDType : 'f32');
    // Kernels write whole words: half of the last one may be a pad, which stays zero.
    const isWhole = (leaf.size * byteSize(dtype)) % 4 === 0;
    if (dtype !== leaf.dtype || !isWhole || this.#written.has(leaf)) {
      return undefined;
    }
    this.#whole ??= this.#begin(dtype);
    this.#written.add(leaf);
    return new Tensor(this.#whole, leaf.shape, layout.offsets[this.#indexOf.get(leaf)!]!);
  }

  /** Adds one contribution to the full gradient. */
  accept(leaf: Tensor, gradient: Tensor, options: { readonly isSyncing: boolean }): void {
    const { device, layout, reduceDType } = this.#context;
    // Gradients that wait for a later backward add up in f32, whatever the wire carries.
    this.#whole ??= this.#begin(options.isSyncing ? reduceDType : 'f32');
    const isInPlace = gradient.storage === this.#whole;
    this.#contributed.add(leaf);
    if (isInPlace) {
      return;
    }
    const out = this.#whole.view(layout.offsets[this.#indexOf.get(leaf)!]!, leaf.size);
    const x = gradient.view();
    if (this.#written.has(leaf)) {
      const spec = { shape: [leaf.size], aStrides: [1], bStrides: [1] };
      device.backend.run('binary', { kind: 'add', a: out, b: x, out, ...spec });
    } else {
      device.backend.run('cast', { x, out });
      this.#written.add(leaf);
    }
  }

  /** Whether it holds a gradient of the parameter's that is not reduced yet. */
  hasContributed(leaf: Tensor): boolean {
    return this.#contributed.has(leaf);
  }

  /** Forgets what a parameter has contributed and no backward has reduced yet (noSync). */
  clear(leaf: Tensor): void {
    if (this.#whole === undefined || !this.#contributed.delete(leaf)) {
      return;
    }
    this.#written.delete(leaf);
    if (this.#contributed.size === 0) {
      this.#whole.release();
      this.#whole = undefined;
      return;
    }
    const { device, layout } = this.#context;
    const out = this.#whole.view(layout.offsets[this.#indexOf.get(leaf)!]!, leaf.size);
    device.backend.run('fill', { out, value: 0 });
  }

  /** One parameter's gradient is final in the pass; true when that was the last one. */
  noteFinal(pass: Pass): boolean {
    this.beginPass(pass);
    this.#expected -= 1;
    return this.#expected === 0;
  }

  /**
   * Hands the full gradient over to be reduced; never waits. Nothing where no parameter contributed,
   * unless `zeros` stand for it.
   */
  startReduce(bucketer: ReduceScatterBucketer, options: { readonly zeros?: boolean } = {}): void {
    if (this.#whole === undefined && options.zeros === true) {
      this.#whole = this.#begin(this.#context.reduceDType);
    }
    const whole = this.#whole;
    if (whole === undefined) {
      return;
    }
    const { name, device, layout, reduceDType, divide, isBucketed, home } = this.#context;
    this.#whole = undefined;
    this.#zeroUnused(whole);
    this.#contributed.clear();
    this.#written.clear();
    if (divide.predivide !== 1) {
      scaleInPlace(device, whole, 1 / divide.predivide);
    }
    const links = this.#context.links();
    const scale = () => 1 / divide.postdivide;
    if (layout.worldSize === 1 && links.replicas === undefined) {
      const added = home.addStorage(whole, scale());
      if (added !== undefined) {
        added.catch(() => undefined); // seen by finish
        this.#added = added;
      }
      whole.release();
      return;
    }
    let outgoing = whole;
    if (whole.dtype !== reduceDType) {
      outgoing = device.storage(whole.elementCount, reduceDType, 'gradient');
      outgoing.fill();
      device.backend.run('cast', { x: whole.view(), out: outgoing.view() });
      whole.release();
    }
    bucketer.add({
      name,
      whole: outgoing,
      worldSize: layout.worldSize,
      links,
      isBucketed,
      onReduced: (shard) => home.addBytes(shard, reduceDType, scale()),
    });
    outgoing.release(); // its read-back is queued
  }

  /** Waits for what was added without a reduction. */
  async finish(): Promise<void> {
    const added = this.#added;
    this.#added = undefined;
    await added;
  }

  /** Pads are zeros, for they are reduced and are in norms; without pads nothing is written here. */
  #begin(dtype: DType): Storage {
    const { device, layout } = this.#context;
    const whole = device.storage(layout.shardLength * layout.worldSize, dtype, 'gradient');
    whole.fill();
    const filled = layout.sizes.reduce((sum, size) => sum + size, 0);
    this.#isZeroed = filled < whole.elementCount;
    if (this.#isZeroed) {
      device.backend.run('fill', { out: whole.view(), value: 0 });
    }
    return whole;
  }

  /** A parameter that no backward has reached counts as having zeros. */
  #zeroUnused(whole: Storage): void {
    if (this.#isZeroed) {
      return;
    }
    const { device, layout, leaves } = this.#context;
    leaves.forEach((leaf, index) => {
      if (leaf.size === 0 || this.#contributed.has(leaf)) {
        return;
      }
      const out = whole.view(layout.offsets[index]!, leaf.size);
      device.backend.run('fill', { out, value: 0 });
    });
  }

  /** Whether its reductions go over the ranks of `links` in `dtype`, among others'. */
  isReducedWith(links: UnitLinks, dtype: DType): boolean {
    const own = this.#context.links();
    return (
      this.#context.isBucketed &&
      this.#context.reduceDType === dtype &&
      own.reduceGroup === links.reduceGroup &&
      own.replicas?.group === links.replicas?.group
    );
  }

  /** Drops a half-made gradient and reduction after a failed backward. */
  reset(): void {
    this.#whole?.release();
    this.#whole = undefined;
    this.#contributed.clear();
    this.#written.clear();
    this.#pass = undefined;
  }
}

function scaleInPlace(device: Device, storage: Storage, scale: number): void {
  const view = storage.view();
  device.backend.run('affine', { x: view, out: view, scale, shift: 0 });
}
