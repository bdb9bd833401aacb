// The flat parameter of one wrapped module: this rank's f32 shard, the full copy that exists around
// its use, and the full gradient on its way to the shard's. Knows no schedule: the wrapper does.
//
// Note [flat parameter]
//   original   the parameter tensors of the wrapped modules; they point into `full` for good
//   flat       this rank's f32 shard with its gradient: what the optimizer steps, always present
//   published  the shard in the compute dtype as host bytes, made once per optimizer step; every
//              gather starts from it and so never waits for the device
//   full       the gathered parameter in the compute dtype; filled and freed under one identity,
//              so what autograd saved in forward is valid again in backward. At world size 1 in
//              f32 it is the flat storage itself.
//   gradient   the full gradient of a backward, freed when its read-back is queued

import type { ProcessGroup } from '@shardweave/collectives';
import { byteSize } from '@shardweave/dtypes';
import { type Device, type DType, type Pass, type Storage, Tensor } from '@shardweave/tensor-core';
import { type FlatLayout, flatLayout, pieceOf } from './flat-layout.js';
import type { HostBuffers } from './host-buffers.js';
import type { StartOrder } from './start-order.js';

/** One original parameter. */
export interface UnitParameter {
  /** Its path below the wrapped module. */
  readonly path: string;
  readonly tensor: Tensor;
}

/** What units of one tree share. */
export interface UnitContext {
  readonly device: Device;
  readonly group: ProcessGroup;
  readonly computeDType: DType;
  /** dtype of gradients on the wire. */
  readonly reduceDType: DType;
  readonly predivide: number;
  readonly postdivide: number;
}

/** The links that the root opens and shares with every unit of its tree. */
export interface UnitLinks {
  readonly reduceGroup: ProcessGroup;
  readonly gathers: StartOrder;
  readonly reductions: StartOrder;
  readonly hostBuffers: HostBuffers;
}

/** A started gather. */
export interface GatherTicket {
  readonly bytes: Promise<Uint8Array> | undefined;
  readonly version: number;
}

export class ShardedUnit {
  readonly name: string;
  readonly parameters: readonly UnitParameter[];
  readonly layout: FlatLayout;
  /** [shardLength] f32: this rank's shard. */
  readonly flat: Tensor;
  readonly full: Storage;
  links: UnitLinks | undefined = undefined;
  readonly #context: UnitContext;
  readonly #indexOf = new Map<Tensor, number>();
  #published: { readonly version: number; readonly bytes: Promise<Uint8Array> } | undefined;
  #publishedBuffer: Uint8Array | undefined;
  #fullVersion = -1;
  #gradient: Storage | undefined;
  readonly #contributed = new Set<Tensor>();
  #pass: Pass | undefined;
  #expected = 0;
  #reduction: Promise<Uint8Array> | undefined;

  /** Takes the parameters' values over, shards them and points the parameters into `full`. */
  constructor(name: string, parameters: readonly UnitParameter[], context: UnitContext) {
    const { device, group, computeDType } = context;
    this.name = name;
    this.parameters = parameters;
    this.#context = context;
    this.layout = flatLayout(
      parameters.map(({ tensor }) => tensor.size),
      group.worldSize,
    );
    const { shardLength } = this.layout;
    const shard = device.storage(shardLength, 'f32', 'parameter');
    this.flat = new Tensor(shard, [shardLength], 0, true);
    this.flat.name = `${name}.flat`;
    this.#fillShard();
    const isWhole = group.worldSize === 1 && computeDType === 'f32';
    this.full = isWhole
      ? shard
      : device.storage(shardLength * group.worldSize, computeDType, 'gathered');
    parameters.forEach(({ tensor }, index) => {
      const own = tensor.storage;
      tensor.rebind(this.full, this.layout.offsets[index]!);
      own.release();
      const { start, end } = pieceOf(this.layout, index, group.rank);
      tensor.piece = { flat: this.flat, start, length: end - start };
      this.#indexOf.set(tensor, index);
    });
  }

  get rank(): number {
    return this.#context.group.rank;
  }

  get device(): Device {
    return this.#context.device;
  }

  /** Bytes of the gathered parameter, padding included. */
  get fullBytes(): number {
    return this.full.elementCount * byteSize(this.full.dtype);
  }

  get isAllFrozen(): boolean {
    return this.parameters.every(({ tensor }) => !tensor.requiresGrad);
  }

  // ---- parameters ------------------------------------------------------------------------------

  /** Presence is read from the storage and its version, never from a flag. */
  get isPresent(): boolean {
    if (this.full === this.flat.storage) return true;
    return this.full.isFilled && this.#fullVersion === this.flat.storage.version;
  }

  /** Queues the cast and read-back of the shard, unless the published bytes are current. */
  publish(): Promise<Uint8Array> {
    const { version } = this.flat.storage;
    if (this.#published?.version === version) return this.#published.bytes;
    const { device, computeDType } = this.#context;
    const staging = device.storage(this.layout.shardLength, computeDType, 'staging');
    staging.fill();
    device.backend.run('cast', { x: this.flat.view(), out: staging.view() });
    this.#publishedBuffer ??= new Uint8Array(staging.byteLength);
    const bytes = staging.read(0, staging.byteLength, this.#publishedBuffer);
    bytes.catch(() => undefined); // seen by the gather that awaits it
    staging.release();
    this.#published = { version, bytes };
    return bytes;
  }

  startGather(): GatherTicket {
    const { version } = this.flat.storage;
    const { group, computeDType } = this.#context;
    if (group.worldSize === 1) return { bytes: undefined, version };
    const { gathers, hostBuffers } = this.#openLinks();
    const bytes = gathers.enqueue(this.publish(), async (shard) => {
      const output = hostBuffers.take(this.fullBytes);
      await group.allGather(shard, output, { dtype: computeDType, tag: this.name });
      return output;
    });
    return { bytes, version };
  }

  async finishGather(ticket: GatherTicket): Promise<void> {
    const bytes = await ticket.bytes;
    this.full.fill();
    if (bytes === undefined) {
      this.device.backend.run('cast', { x: this.flat.view(), out: this.full.view() });
    } else {
      this.full.write(bytes);
      this.#openLinks().hostBuffers.give(bytes);
    }
    this.#fullVersion = ticket.version;
  }

  /** Frees the full parameter; its identity and the published bytes stay. */
  drop(): void {
    if (this.full !== this.flat.storage) this.full.free();
  }

  // ---- gradients -------------------------------------------------------------------------------

  /** Whether `pass` will bring this unit any gradient, and how many parameters get one. */
  beginPass(pass: Pass): void {
    if (this.#pass === pass) return;
    this.#pass = pass;
    this.#expected = this.parameters.filter(({ tensor }) => pass.reached.has(tensor)).length;
  }

  /** Adds one contribution to the full gradient. */
  accept(leaf: Tensor, gradient: Tensor, options: { readonly isSyncing: boolean }): void {
    const { device, reduceDType } = this.#context;
    if (this.#gradient === undefined) {
      // Gradients that wait for a later backward add up in f32, whatever the wire carries.
      const dtype = options.isSyncing ? reduceDType : 'f32';
      this.#gradient = device.storage(
        this.layout.shardLength * this.layout.worldSize,
        dtype,
        'gradient',
      );
      this.#gradient.fill();
      device.backend.run('fill', { out: this.#gradient.view(), value: 0 }); // pads, unused ones
    }
    const out = this.#gradient.view(this.layout.offsets[this.#indexOf.get(leaf)!]!, leaf.size);
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
    if (this.#gradient === undefined || !this.#contributed.delete(leaf)) return;
    if (this.#contributed.size === 0) {
      this.#gradient.release();
      this.#gradient = undefined;
      return;
    }
    const out = this.#gradient.view(this.layout.offsets[this.#indexOf.get(leaf)!]!, leaf.size);
    this.device.backend.run('fill', { out, value: 0 });
  }

  /** One parameter's gradient is final in the pass; true when that was the last one. */
  noteFinal(pass: Pass): boolean {
    this.beginPass(pass);
    this.#expected -= 1;
    return this.#expected === 0;
  }

  /** Queues the read-back of the full gradient and its reduce-scatter; never waits. */
  startReduce(): void {
    const gradient = this.#gradient;
    if (gradient === undefined) return;
    const { device, group, predivide, reduceDType } = this.#context;
    this.#gradient = undefined;
    this.#contributed.clear();
    if (predivide !== 1) scaleInPlace(device, gradient, 1 / predivide);
    if (group.worldSize === 1) {
      this.#accumulate(gradient);
      gradient.release();
      return;
    }
    let outgoing = gradient;
    if (gradient.dtype !== reduceDType) {
      outgoing = device.storage(gradient.elementCount, reduceDType, 'gradient');
      outgoing.fill();
      device.backend.run('cast', { x: gradient.view(), out: outgoing.view() });
      gradient.release();
    }
    const { reductions, reduceGroup, hostBuffers } = this.#openLinks();
    const host = hostBuffers.take(outgoing.byteLength);
    const read = outgoing.read(0, outgoing.byteLength, host);
    read.catch(() => undefined); // seen by whoever awaits the reduction
    outgoing.release();
    this.#reduction = reductions.enqueue(read, async (input) => {
      const output = hostBuffers.take(input.byteLength / group.worldSize);
      await reduceGroup.reduceScatter(input, output, {
        dtype: reduceDType,
        op: 'sum',
        tag: this.name,
      });
      hostBuffers.give(input);
      return output;
    });
  }

  /** Waits for a started reduction and adds its result to the shard's gradient. */
  async finishReduce(): Promise<void> {
    const reduction = this.#reduction;
    if (reduction === undefined) return;
    this.#reduction = undefined;
    const bytes = await reduction;
    const { device, reduceDType } = this.#context;
    const staging = device.storage(this.layout.shardLength, reduceDType, 'staging');
    staging.fill();
    staging.write(bytes);
    this.#openLinks().hostBuffers.give(bytes);
    this.#accumulate(staging);
    staging.release();
  }

  /** flat.grad (+)= reduced / postdivide. */
  #accumulate(reduced: Storage): void {
    const { device, postdivide } = this.#context;
    const scale = 1 / postdivide;
    const { shardLength } = this.layout;
    const x = reduced.view();
    if (this.flat.grad === undefined) {
      const storage = device.storage(shardLength, 'f32', 'gradient');
      storage.fill();
      this.flat.grad = new Tensor(storage, [shardLength]);
      device.backend.run('affine', { x, out: storage.view(), scale, shift: 0 });
      return;
    }
    const scaled = device.storage(shardLength, 'f32', 'gradient');
    scaled.fill();
    device.backend.run('affine', { x, out: scaled.view(), scale, shift: 0 });
    device.addInPlace(this.flat.grad, new Tensor(scaled, [shardLength]));
    scaled.release();
  }

  /** Drops a half-made gradient and reduction after a failed backward. */
  reset(): void {
    this.#gradient?.release();
    this.#gradient = undefined;
    this.#contributed.clear();
    this.#reduction = undefined;
    this.#pass = undefined;
  }

  // ---- full precision --------------------------------------------------------------------------

  /** The f32 storage that the parameters point into while they are summoned. */
  get #summoned(): Storage | undefined {
    const { storage } = this.parameters[0]!.tensor;
    return storage === this.full ? undefined : storage;
  }

  /** The whole f32 parameter as host bytes; every rank of the group calls it. */
  async gatherMaster(): Promise<Uint8Array> {
    const { group } = this.#context;
    if (this.#summoned !== undefined) return this.#summoned.read();
    const read = this.flat.storage.read();
    if (group.worldSize === 1) return read;
    read.catch(() => undefined); // seen by the gather
    const gather = async (shard: Uint8Array) => {
      const output = new Uint8Array(shard.byteLength * group.worldSize);
      await group.allGather(shard, output, { dtype: 'f32', tag: this.name });
      return output;
    };
    // Behind gathers that a failed forward has started.
    return this.links === undefined ? gather(await read) : this.links.gathers.enqueue(read, gather);
  }

  /** Sets the parameter from its whole f32 bytes: this rank's shard, or what is summoned. */
  scatterMaster(whole: Uint8Array): void {
    if (this.#summoned !== undefined) {
      this.#summoned.write(whole);
      return;
    }
    const shardBytes = this.flat.storage.byteLength;
    const start = this.#context.group.rank * shardBytes;
    this.flat.storage.write(whole.subarray(start, start + shardBytes));
  }

  dispose(): void {
    this.reset();
    this.flat.grad?.dispose();
    this.flat.grad = undefined;
    if (this.full !== this.flat.storage) this.full.release();
    this.flat.dispose();
  }

  /** Copies the part of the original parameters that this rank owns into the shard. */
  #fillShard(): void {
    const { device, group } = this.#context;
    this.flat.storage.fill();
    device.backend.run('fill', { out: this.flat.view(), value: 0 });
    const shardStart = group.rank * this.layout.shardLength;
    this.parameters.forEach(({ tensor }, index) => {
      const { start, end } = pieceOf(this.layout, index, group.rank);
      if (start === end) return;
      const first = tensor.offset + shardStart + start - this.layout.offsets[index]!;
      device.backend.run('cast', {
        x: tensor.storage.view(first, end - start),
        out: this.flat.storage.view(start, end - start),
      });
    });
  }

  #openLinks(): UnitLinks {
    if (this.links === undefined)
      throw new Error(`unit ${this.name}: its root has not opened links`);
    return this.links;
  }
}

function scaleInPlace(device: Device, storage: Storage, scale: number): void {
  const view = storage.view();
  device.backend.run('affine', { x: view, out: view, scale, shift: 0 });
}
