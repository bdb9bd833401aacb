// The full gradient of one flat parameter on its way to the shard's: contributions of a backward
// are added up, the whole is read back, reduce-scattered and added to the shard's gradient.

import { type Device, type DType, type Pass, type Storage, Tensor } from '@shardweave/tensor-core';
import type { FlatLayout } from './flat-layout.js';
import type { UnitLinks } from './unit-links.js';

export interface FlatGradientContext {
  /** For errors and traces. */
  readonly name: string;
  readonly device: Device;
  readonly layout: FlatLayout;
  /** The leaves, in the layout's order. */
  readonly leaves: readonly Tensor[];
  /** [shardLength] f32: its `grad` takes the result. */
  readonly flat: Tensor;
  /** dtype of gradients on the wire. */
  readonly reduceDType: DType;
  readonly predivide: number;
  readonly postdivide: number;
  /** Open from the first forward on. */
  links(): UnitLinks;
}

export class FlatGradient {
  readonly #context: FlatGradientContext;
  readonly #indexOf: ReadonlyMap<Tensor, number>;
  readonly #contributed = new Set<Tensor>();
  #whole: Storage | undefined;
  #pass: Pass | undefined;
  #expected = 0;
  #reduction: Promise<Uint8Array> | undefined;

  constructor(context: FlatGradientContext) {
    this.#context = context;
    this.#indexOf = new Map(context.leaves.map((leaf, index) => [leaf, index]));
  }

  /** Notes how many parameters will get a gradient in `pass`. */
  beginPass(pass: Pass): void {
    if (this.#pass === pass) return;
    this.#pass = pass;
    this.#expected = this.#context.leaves.filter((leaf) => pass.reached.has(leaf)).length;
  }

  /** Adds one contribution to the full gradient. */
  accept(leaf: Tensor, gradient: Tensor, options: { readonly isSyncing: boolean }): void {
    const { device, layout, reduceDType } = this.#context;
    if (this.#whole === undefined) {
      // Gradients that wait for a later backward add up in f32, whatever the wire carries.
      const dtype = options.isSyncing ? reduceDType : 'f32';
      this.#whole = device.storage(layout.shardLength * layout.worldSize, dtype, 'gradient');
      this.#whole.fill();
      device.backend.run('fill', { out: this.#whole.view(), value: 0 }); // pads, unused ones
    }
    const out = this.#whole.view(layout.offsets[this.#indexOf.get(leaf)!]!, leaf.size);
    const x = gradient.view();
    if (this.#contributed.has(leaf)) {
      const spec = { shape: [leaf.size], aStrides: [1], bStrides: [1] };
      device.backend.run('binary', { kind: 'add', a: out, b: x, out, ...spec });
    } else {
      device.backend.run('cast', { x, out });
      this.#contributed.add(leaf);
    }
  }

  /** Forgets what a parameter has contributed and no backward has reduced yet (noSync). */
  clear(leaf: Tensor): void {
    if (this.#whole === undefined || !this.#contributed.delete(leaf)) return;
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

  /** Queues the read-back of the full gradient and its reduce-scatter; never waits. */
  startReduce(): void {
    const whole = this.#whole;
    if (whole === undefined) return;
    const { name, device, layout, predivide, postdivide, reduceDType } = this.#context;
    this.#whole = undefined;
    this.#contributed.clear();
    if (predivide !== 1) scaleInPlace(device, whole, 1 / predivide);
    const { reductions, reduceGroup, replicas, hostBuffers } = this.#context.links();
    if (layout.worldSize === 1 && replicas === undefined) {
      this.#accumulate(whole, postdivide);
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
    const host = hostBuffers.take(outgoing.byteLength);
    const read = outgoing.read(0, outgoing.byteLength, host);
    read.catch(() => undefined); // seen by whoever awaits the reduction
    outgoing.release();
    const options = { dtype: reduceDType, op: 'sum', tag: name } as const;
    let reduced = read;
    if (layout.worldSize > 1) {
      reduced = reductions.enqueue(read, async (input) => {
        const output = hostBuffers.take(input.byteLength / layout.worldSize);
        await reduceGroup.reduceScatter(input, output, options);
        hostBuffers.give(input);
        return output;
      });
    }
    this.#reduction =
      replicas === undefined
        ? reduced
        : replicas.order.enqueue(reduced, async (shard) => {
            await replicas.group.allReduce(shard, shard, options);
            return shard;
          });
  }

  /** Waits for a started reduction and adds its result to the shard's gradient. */
  async finishReduce(): Promise<void> {
    const reduction = this.#reduction;
    if (reduction === undefined) return;
    this.#reduction = undefined;
    const bytes = await reduction;
    const { device, layout, reduceDType, postdivide, links } = this.#context;
    const staging = device.storage(layout.shardLength, reduceDType, 'staging');
    staging.fill();
    staging.write(bytes);
    links().hostBuffers.give(bytes);
    this.#accumulate(staging, postdivide);
    staging.release();
  }

  /** flat.grad (+)= reduced / postdivide. */
  #accumulate(reduced: Storage, postdivide: number): void {
    const { device, flat, layout } = this.#context;
    const scale = 1 / postdivide;
    const { shardLength } = layout;
    const x = reduced.view();
    if (flat.grad === undefined) {
      const storage = device.storage(shardLength, 'f32', 'gradient');
      storage.fill();
      flat.grad = new Tensor(storage, [shardLength]);
      device.backend.run('affine', { x, out: storage.view(), scale, shift: 0 });
      return;
    }
    const scaled = device.storage(shardLength, 'f32', 'gradient');
    scaled.fill();
    device.backend.run('affine', { x, out: scaled.view(), scale, shift: 0 });
    device.addInPlace(flat.grad, new Tensor(scaled, [shardLength]));
    scaled.release();
  }

  /** Drops a half-made gradient and reduction after a failed backward. */
  reset(): void {
    this.#whole?.release();
    this.#whole = undefined;
    this.#contributed.clear();
    this.#reduction = undefined;
    this.#pass = undefined;
  }
}

function scaleInPlace(device: Device, storage: Storage, scale: number): void {
  const view = storage.view();
  device.backend.run('affine', { x: view, out: view, scale, shift: 0 });
}
