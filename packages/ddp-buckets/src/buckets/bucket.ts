// A bucket holds the gradients of some parameters in one storage. Backward fills it, and it is read
// back to the host; its owner adds the bytes up over ranks; then the sum is written to the device
// and dealt out to the parameters. A bucket knows nothing of other buckets or of ranks.
//
// Note [a bucket's storage]
// The storage is that of the bucket's flat gradient. It is given back as soon as its read-back is
// queued, and taken again for the result. With retained gradients each backward has a storage of
// its own, which lives as long as gradients are views of it.

import { byteSize, type DType } from '@shardweave/dtypes';
import { type DeliveredLeaf, FlatGradient, type PackedGradient } from '@shardweave/nn/flat';
import { type Device, type Storage, Tensor } from '@shardweave/tensor-core';
import type { BucketLayout } from '../bucket-layout.js';
import type { BucketMember } from '../communication-hooks/communication-hook.js';
import type { ActiveParameter, WrapperContext } from './wrapped-parameters.js';

export interface ReceiveOptions {
  /** The number that the sum is divided by. */
  readonly postdivide: number;
  /** Tells which members get a gradient; the others keep what they have. */
  readonly isUsed: (member: number) => boolean;
}

export class Bucket {
  readonly index: number;
  readonly layout: BucketLayout;
  readonly parameters: readonly ActiveParameter[];
  readonly members: readonly BucketMember[];
  /**
   * The dtype on the wire: f32 where 16-bit gradients are reduced in f32, else the gradients' own.
   */
  readonly reduceDType: DType;
  readonly #wrapper: WrapperContext;
  /** The sinks of its packed parameters, by member. */
  readonly #packed: readonly (PackedGradient | undefined)[];
  /** Whether the gradients of the present backward add up in f32, whatever is sent. */
  #isWide = false;
  /** The gradients as backward adds them up, until the bucket is sent. */
  readonly gradient: FlatGradient;
  /** The storage for the result, from the moment when the bucket is sent. */
  #storage: Storage | undefined;
  #numReady = 0;

  constructor(
    index: number,
    layout: BucketLayout,
    active: readonly ActiveParameter[],
    wrapper: WrapperContext,
  ) {
    this.index = index;
    this.layout = layout;
    this.parameters = layout.members.map((member) => active[member]!);
    this.members = this.parameters.map(({ path, tensor }, i) => ({
      path,
      shape: tensor.shape,
      offset: layout.offsets[i]!,
      size: tensor.size,
    }));
    this.reduceDType = wrapper.options.isAlwaysFp32 ? 'f32' : layout.dtype;
    this.#wrapper = wrapper;
    const leaves = this.parameters.map(({ tensor }) => tensor);
    const { device, parameters } = wrapper;
    this.#packed = leaves.map((leaf) => parameters.packedOf(leaf));
    this.gradient = new FlatGradient({ device, layout, leaves, dtype: () => this.#sumDType });
  }

  /**
   * The dtype in which gradients add up: that of the parameters, or where packed ones are among
   * them that of the wire; f32 where f32 sums of earlier backwards go with them.
   */
  get #sumDType(): DType {
    if (this.#packed.every((packed) => packed === undefined)) {
      return this.layout.dtype;
    }
    return this.#isWide ? 'f32' : this.reduceDType;
  }

  /**
   * Begins a backward.
   * @param hasLeft whether earlier backwards have left something of a parameter
   */
  begin(hasLeft: (leaf: Tensor) => boolean): void {
    this.#isWide = this.parameters.some(
      ({ tensor }, member) => this.#packed[member] !== undefined && hasLeft(tensor),
    );
  }

  /** The number of bytes that travel, gaps included. */
  get wireBytes(): number {
    return this.layout.elementCount * byteSize(this.reduceDType);
  }

  /** Whether all gradients are final. */
  get isReady(): boolean {
    return this.#numReady === this.members.length;
  }

  /** Notes that a member's gradient is final. */
  noteReady(): void {
    this.#numReady += 1;
  }

  /**
   * Divides by the first factor and queues the read-back into `into`; meanwhile the storage is
   * given back. On a single rank `into` is undefined, and everything stays where it is.
   */
  send(into: Uint8Array | undefined): Promise<Uint8Array> | undefined {
    const { reduceDType } = this;
    const { device, options } = this.#wrapper;
    const storage = this.gradient.take({ leaves: this.parameters.map(({ tensor }) => tensor) })!;
    this.#storage = storage;
    let outgoing = storage;
    if (reduceDType !== storage.dtype && into !== undefined) {
      outgoing = device.storage(storage.elementCount, reduceDType, 'staging');
      outgoing.fill();
    }
    const [x, out] = [storage.view(), outgoing.view()];
    if (options.predivide !== 1) {
      device.backend.run('affine', { x, out, scale: 1 / options.predivide, shift: 0 });
    } else if (outgoing !== storage) {
      device.backend.run('cast', { x, out });
    }
    if (into === undefined) {
      return undefined;
    }
    const read = outgoing.read(0, into.byteLength, into);
    read.catch(() => undefined); // seen by whoever awaits the reduction
    if (outgoing !== storage) {
      outgoing.release();
    }
    storage.free();
    return read;
  }

  // ---- at the end of backward ------------------------------------------------------------------

  /**
   * Takes the sum over ranks and adds it, divided, to the gradients. Where `sum` is undefined, what
   * is on the device is the sum.
   * @returns the buffer that retained gradients are views of; it belongs to them, not to the caller
   */
  receive(sum: Uint8Array | undefined, options: ReceiveOptions): Tensor | undefined {
    const storage = this.#storage!;
    this.#clear();
    const reduced = sum === undefined ? storage : this.#upload(storage, sum);
    const { isRetaining } = this.#wrapper.options;
    const scale = 1 / options.postdivide;
    if (isRetaining) {
      this.#affine(reduced, storage, { from: 0, size: storage.elementCount, scale });
    }
    const delivered = new Map<PackedGradient, DeliveredLeaf[]>();
    this.parameters.forEach(({ tensor }, member) => {
      if (!options.isUsed(member)) {
        return;
      }
      const packed = this.#packed[member];
      if (packed !== undefined) {
        const { offset } = this.members[member]!;
        const leaves = delivered.get(packed) ?? [];
        delivered.set(packed, leaves);
        leaves.push({ leaf: tensor, offset });
      } else if (isRetaining) {
        this.#lookInto(tensor, member, storage);
      } else {
        this.#dealOut(tensor, member, { reduced, scale });
      }
    });
    for (const [packed, leaves] of delivered) {
      leaves.sort((a, b) => a.offset - b.offset);
      packed.deliver(reduced, leaves, scale);
    }
    const hasViews = isRetaining && storage.holds > 1;
    if (reduced !== storage) {
      reduced.release();
    }
    storage.release(); // the views have holds of their own
    return hasViews ? new Tensor(storage, [storage.elementCount]) : undefined;
  }

  /** Drops what a failed backward has left. */
  reset(): void {
    this.gradient.reset();
    this.#storage?.release();
    this.#clear();
  }

  #clear(): void {
    this.#storage = undefined;
    this.#numReady = 0;
  }

  // ---- storages --------------------------------------------------------------------------------

  /**
   * Puts the sum on the device: into the storage itself, or into another one where dtypes differ.
   */
  #upload(storage: Storage, sum: Uint8Array): Storage {
    const { reduceDType } = this;
    const { device, options } = this.#wrapper;
    const isSame = reduceDType === storage.dtype;
    if (isSame || options.isRetaining) {
      storage.fill();
    }
    const target = isSame ? storage : device.storage(storage.elementCount, reduceDType, 'staging');
    target.fill();
    target.write(sum);
    return target;
  }

  #affine(
    reduced: Storage,
    out: Storage,
    range: {
      readonly from: number;
      readonly size: number;
      readonly scale: number;
      /** The first element of the output. Default: `from`. */
      readonly to?: number;
    },
  ): void {
    const { from, size, scale, to = from } = range;
    const call = { x: reduced.view(from, size), out: out.view(to, size), scale, shift: 0 };
    this.#wrapper.device.backend.run('affine', call);
  }

  /** Makes the parameter a gradient of its own, or adds to the one that it has. */
  #dealOut(
    leaf: Tensor,
    member: number,
    { reduced, scale }: { readonly reduced: Storage; readonly scale: number },
  ): void {
    const { device } = this.#wrapper;
    const { offset, size } = this.members[member]!;
    const own = device.storage(size, leaf.dtype, 'gradient');
    own.fill();
    this.#affine(reduced, own, { from: offset, to: 0, size, scale });
    if (leaf.grad === undefined) {
      leaf.grad = new Tensor(own, leaf.shape).markKept();
      return;
    }
    leaf.grad.storage.markWritten();
    addInto(device, leaf.grad.view(), own.view());
    own.release();
  }

  /** Makes the gradient a view of the bucket, or adds that part of the bucket to the gradient. */
  #lookInto(leaf: Tensor, member: number, scaled: Storage): void {
    const { offset, size } = this.members[member]!;
    if (leaf.grad === undefined) {
      scaled.retain();
      leaf.grad = new Tensor(scaled, leaf.shape, offset).markKept();
      return;
    }
    leaf.grad.storage.markWritten();
    addInto(this.#wrapper.device, leaf.grad.view(), scaled.view(offset, size));
  }
}

/**
 * Adds a dense source to a dense target, whatever their dtypes are. Where a 16-bit target has an
 * odd size, the other half of its last word may be overwritten.
 */
function addInto(
  device: Device,
  out: ReturnType<Tensor['view']>,
  source: ReturnType<Tensor['view']>,
): void {
  const shape = [out.size];
  const call = {
    kind: 'add',
    a: out,
    b: source,
    out,
    shape,
    aStrides: [1],
    bStrides: [1],
  } as const;
  device.backend.run('binary', call);
}
