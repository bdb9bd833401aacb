// One flat parameter of a wrapped module: this rank's master shard, and the full copy that exists
// around its use. Knows no schedule: the wrapper does.
//
// Note [flat parameter]
//   original   the parameter tensors of the wrapped modules; once sharded they point into `full`
//   flat       this rank's master shard, in the parameters' own dtype, with its gradient: what the
//              optimizer steps
//   published  the shard in the compute dtype as host bytes, made once per optimizer step; every
//              gather starts from it and so never waits for the device
//   full       the gathered parameter, f32 ones in the compute dtype; filled and freed under one identity,
//              so what autograd saved in forward is valid again in backward. At world size 1,
//              unless mixed or at home elsewhere, it is the flat storage itself.
//   home       where shard, gradient and state rest, if not on the device: `flat` is empty but for
//              a step, and nothing is published, for every gather starts from host bytes anyway

import type { ProcessGroup } from '@shardweave/collectives';
import { byteSize } from '@shardweave/dtypes';
import { dropRecipe, recipeOf, StoredFlat, setFlatHome } from '@shardweave/nn/flat';
import { type Device, type DType, type Pass, type Storage, Tensor } from '@shardweave/tensor-core';
import { FsdpStateError } from '../errors.js';
import { callIdentity } from '../tree/explained.js';
import { tellFailure } from '../tree/rank-failure.js';
import { DeviceGradientHome } from './gradient-home.js';
import type { Residence } from './residence.js';
import { pieceOf, type ShardLayout, shardLayout } from './shard-layout.js';
import { type DivideFactors, UnitGradient } from './unit-gradient.js';
import type { UnitLinks } from './unit-links.js';

/** One original parameter. */
export interface UnitParameter {
  /** Its path below the wrapped module. */
  readonly path: string;
  readonly tensor: Tensor;
}

/** What the units of one instance share. */
export interface UnitContext {
  readonly device: Device;
  readonly group: ProcessGroup;
  /** Shards of this dtype are gathered in `computeDType`, others in their own. */
  readonly masterDType: DType;
  readonly computeDType: DType;
  /** dtype of gradients on the wire. */
  readonly reduceDType: DType;
  readonly divide: Readonly<DivideFactors>;
  /** Where the shards rest; undefined: on the device. */
  readonly residence: Residence | undefined;
  /** Whether reductions may share a collective. */
  readonly isBucketed: boolean;
  /** The instance. */
  readonly owner: object;
  /** Whether gradients are reduced at the end of this backward; undefined before the first forward. */
  isSyncing(): boolean | undefined;
  /** Before each contribution to a gradient; refuses it where it throws. */
  onContribution(pass: Pass): void;
  /** All gradients that a backward brings to a unit are in. */
  onFinal(unit: ShardedUnit): void;
}

/** A started gather. */
export interface GatherTicket {
  readonly bytes: Promise<Uint8Array> | undefined;
  readonly version: number;
}

export class ShardedUnit {
  readonly name: string;
  readonly parameters: readonly UnitParameter[];
  readonly layout: ShardLayout;
  /** [shardLength] in the master dtype: this rank's shard; its storage is empty until shard(). */
  readonly flat: Tensor;
  readonly full: Storage;
  readonly gradient: UnitGradient;
  /** Undefined where everything rests on the device. */
  readonly home: StoredFlat | undefined;
  links: UnitLinks | undefined = undefined;
  /** Why its shard could not be read last, which may come out as another call's error first. */
  failure: { readonly error: unknown } | undefined = undefined;
  readonly #context: UnitContext;
  #isSharded = false;
  #published: { readonly version: number; readonly bytes: Promise<Uint8Array> } | undefined;
  #publishedBuffer: Uint8Array | undefined;
  /** The storage versions of the shard that `full` was gathered from, and of `full` at that time. */
  #fullVersion = -1;
  #gatheredAs = -1;

  /** Lays the parameters out and tells optimizers where their pieces are; values stay until shard. */
  constructor(name: string, parameters: readonly UnitParameter[], context: UnitContext) {
    const { device, group } = context;
    this.name = name;
    this.parameters = parameters;
    this.#context = context;
    const leaves = parameters.map(({ tensor }) => tensor);
    const masterDType = leaves[0]!.dtype;
    const computeDType = masterDType === context.masterDType ? context.computeDType : masterDType;
    this.layout = shardLayout(
      leaves.map(({ size }) => size),
      group.worldSize,
    );
    const { shardLength } = this.layout;
    const shard = device.storage(shardLength, masterDType, 'parameter');
    this.flat = new Tensor(shard, [shardLength], 0, true);
    this.flat.name = `${name}.flat`;
    const { residence } = context;
    const links = () => this.#openLinks();
    this.home =
      residence &&
      new StoredFlat({ ...residence, flat: this.flat, hostBuffers: () => links().hostBuffers });
    if (this.home !== undefined) {
      setFlatHome(this.flat, this.home);
    }
    const isWhole =
      group.worldSize === 1 && computeDType === masterDType && this.#masterHome === undefined;
    this.full = isWhole
      ? shard
      : device.storage(shardLength * group.worldSize, computeDType, 'gathered');
    this.full.absentHint = `Flat parameter '${name}' is gathered inside its instance's forward, in the backward of what that returned, and inside summonFullParams. A loss kept in a field is none of it: return it with the rest. A wrapped list is never called: wrap the modules in it.`;
    leaves.forEach((tensor, index) => {
      const { start, end, first } = pieceOf(this.layout, index, group.rank);
      const numShards = group.worldSize;
      tensor.piece = { flat: this.flat, start, length: end - start, first, numShards };
    });
    const home = this.home ?? new DeviceGradientHome(device, this.flat);
    this.gradient = new UnitGradient({
      ...context,
      onFinal: () => context.onFinal(this),
      name,
      layout: this.layout,
      leaves,
      home,
      links,
    });
    for (const leaf of leaves) {
      leaf.gradSink = this.gradient.sum;
    }
  }

  get rank(): number {
    return this.#context.group.rank;
  }

  get device(): Device {
    return this.#context.device;
  }

  get group(): ProcessGroup {
    return this.#context.group;
  }

  /** Elements of the gathered parameter, padding included. */
  get fullElements(): number {
    return this.layout.shardLength * this.layout.worldSize;
  }

  /** Bytes of the gathered parameter, padding included. */
  get fullBytes(): number {
    return this.fullElements * byteSize(this.full.dtype);
  }

  get isAllFrozen(): boolean {
    return this.parameters.every(({ tensor }) => !tensor.requiresGrad);
  }

  get hasFrozen(): boolean {
    return this.parameters.some(({ tensor }) => !tensor.requiresGrad);
  }

  // ---- sharding --------------------------------------------------------------------------------

  /** Whether the parameters' values have moved into the shards. */
  get isSharded(): boolean {
    return this.#isSharded;
  }

  /** Memory for the shard; what it holds is undefined. */
  beginSharding(): void {
    if (this.#masterHome === undefined) {
      this.flat.storage.fill();
    } else {
      this.#masterHome.beginFilling();
    }
  }

  /** Where the master shard rests; undefined on the device. */
  get #masterHome(): StoredFlat | undefined {
    return this.home?.holdsState ? this.home : undefined;
  }

  /** Whether its store has values that take the place of initial ones. */
  get isResuming(): boolean {
    return this.#masterHome?.isResuming ?? false;
  }

  /** The shard holds its values: frees the parameters' own memory and points them into `full`. */
  async endSharding(): Promise<void> {
    await this.#masterHome?.endFilling();
    this.#isSharded = true;
    this.parameters.forEach(({ tensor }, index) => {
      const own = tensor.storage;
      dropRecipe(tensor);
      tensor.rebind(this.full, this.layout.offsets[index]!);
      own.release();
    });
  }

  /** Whether values of its parameters were not made yet. */
  get hasDeferred(): boolean {
    return this.parameters.some(({ tensor }) => recipeOf(tensor) !== undefined);
  }

  /**
   * Host bytes of elements [start, end) of the whole flat parameter before sharding, in the master
   * dtype, zeros in pads. What is deferred is made here.
   */
  async readOriginals(start: number, end: number): Promise<Uint8Array> {
    const elementBytes = byteSize(this.flat.dtype);
    const bytes = new Uint8Array((end - start) * elementBytes);
    for (const [index, { tensor }] of this.parameters.entries()) {
      const offset = this.layout.offsets[index]!;
      const from = Math.max(start, offset);
      const to = Math.min(end, offset + tensor.size);
      if (from >= to) {
        continue;
      }
      const part = await readPart(tensor, from - offset, to - offset);
      bytes.set(part, (from - start) * elementBytes);
    }
    return bytes;
  }

  /** Copies the part of the original parameters that this rank owns into the shard, on the device. */
  copyOwnPart(): void {
    const { device, group } = this.#context;
    device.backend.run('fill', { out: this.flat.view(), value: 0 });
    const shardStart = group.rank * this.layout.shardLength;
    this.parameters.forEach(({ tensor }, index) => {
      const { start, end } = pieceOf(this.layout, index, group.rank);
      if (start === end) {
        return;
      }
      const first = tensor.offset + shardStart + start - this.layout.offsets[index]!;
      device.backend.run('cast', {
        x: tensor.storage.view(first, end - start),
        out: this.flat.storage.view(start, end - start),
      });
    });
  }

  /** Bytes of this rank's master shard. */
  async readMaster(byteOffset = 0, byteLength = this.masterBytes): Promise<Uint8Array> {
    const home = this.#masterHome;
    if (home !== undefined) {
      return home.readParameter(byteOffset, byteLength);
    }
    return this.flat.storage.read(byteOffset, byteLength);
  }

  /** Writes bytes of this rank's master shard, whole words; what was gathered from it is stale. */
  async writeMaster(bytes: Uint8Array, byteOffset = 0): Promise<void> {
    const home = this.#masterHome;
    if (home === undefined) {
      return this.flat.storage.write(bytes, byteOffset);
    }
    this.flat.storage.markWritten();
    await home.writeParameter(bytes, byteOffset);
  }

  /** Bytes of one rank's master shard. */
  get masterBytes(): number {
    return this.layout.shardLength * byteSize(this.flat.dtype);
  }

  // ---- gathering -------------------------------------------------------------------------------

  /** Presence is read from the storage and its version, never from a flag. */
  get isPresent(): boolean {
    if (this.full === this.flat.storage) {
      return true;
    }
    return this.full.isFilled && this.#fullVersion === this.flat.storage.version;
  }

  /** Queues the cast and read-back of the shard, unless the published bytes are current. */
  publish(): Promise<Uint8Array> {
    const { version } = this.flat.storage;
    if (this.#published?.version === version) {
      return this.#published.bytes;
    }
    const { device } = this.#context;
    const staging = device.storage(this.layout.shardLength, this.full.dtype, 'staging');
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
    const { group } = this.#context;
    const { dtype } = this.full;
    const stored = this.#masterHome?.readForLoad(dtype);
    if (group.worldSize === 1) {
      stored?.catch(() => undefined); // seen by finishGather
      return { bytes: stored, version };
    }
    const { gathers, hostBuffers } = this.#openLinks();
    const bytes = gathers.enqueue(
      stored ?? this.publish(),
      async (shard) => {
        const output = hostBuffers.take(this.fullBytes);
        const { name } = this;
        await group.allGather(shard, output, { dtype, tag: name, identity: name });
        if (stored !== undefined) {
          hostBuffers.give(shard);
        }
        return output;
      },
      { unready: this.#failing('a gather') },
    );
    return { bytes, version };
  }

  async finishGather(ticket: GatherTicket): Promise<void> {
    const bytes = await ticket.bytes;
    if (this.full !== this.flat.storage) {
      this.full.fill();
    }
    if (bytes === undefined) {
      this.device.backend.run('cast', { x: this.flat.view(), out: this.full.view() });
    } else {
      this.full.write(bytes);
      this.#openLinks().hostBuffers.give(bytes);
    }
    this.#fullVersion = ticket.version;
    this.#gatheredAs = this.full.version;
  }

  /**
   * Takes what the program has written into the gathered copy over into the shard, and frees the copy, so
   * that each rank's part of it is everybody's. Nothing where nobody has written.
   * @throws {FsdpStateError} where the shard cannot take it over; the copy is freed
   */
  keepWrites(): void {
    const { full, flat } = this;
    if (full === flat.storage || !full.isFilled || full.version === this.#gatheredAs) {
      return;
    }
    const isCurrent = this.#fullVersion === flat.storage.version;
    if (isCurrent && full.dtype === flat.dtype && this.#masterHome === undefined) {
      const { shardLength } = this.layout;
      const own = full.view(this.rank * shardLength, shardLength);
      this.device.backend.run('cast', { x: own, out: flat.view() });
      flat.storage.markWritten();
      full.free();
      return;
    }
    full.free();
    const place = isCurrent
      ? `${full.dtype} copy of ${flat.dtype} shards${this.#masterHome === undefined ? '' : ' in a store'}`
      : 'copy that a step or load has passed';
    throw new FsdpStateError(
      `fsdp: expected the gathered parameters of '${this.name}' as they were, got a write into the ${place}, which would be lost. Write inside summonFullParams.`,
    );
  }

  /** Frees the full parameter; its identity and the published bytes stay. */
  drop(): void {
    if (this.full !== this.flat.storage) {
      this.full.free();
    }
  }

  // ---- full precision --------------------------------------------------------------------------

  /** The storage that the parameters point into while they are summoned. */
  get #summoned(): Storage | undefined {
    const { storage } = this.parameters[0]!.tensor;
    return storage === this.full ? undefined : storage;
  }

  /** The whole parameter in the master dtype as host bytes; every rank of the group calls it. */
  async gatherMaster(operation: string): Promise<Uint8Array> {
    const { group } = this.#context;
    if (this.#summoned !== undefined) {
      return this.#summoned.read();
    }
    const read = this.readMaster();
    if (group.worldSize === 1) {
      return read;
    }
    read.catch(() => undefined); // seen by the gather
    const identity = callIdentity(operation, this.name);
    // Behind gathers that a failed forward has started.
    return this.#openLinks().gathers.enqueue(
      read,
      async (shard) => {
        const output = new Uint8Array(shard.byteLength * group.worldSize);
        await group.allGather(shard, output, { dtype: this.flat.dtype, tag: this.name, identity });
        return output;
      },
      { unready: this.#failing(operation) },
    );
  }

  /** As gatherMaster, but only rank 0 of the group gets the bytes; the others hold their shard alone. */
  async gatherMasterToFirst(operation: string): Promise<Uint8Array | undefined> {
    const { group } = this.#context;
    if (this.#summoned !== undefined || group.worldSize === 1) {
      return this.gatherMaster(operation);
    }
    const read = this.readMaster();
    read.catch(() => undefined); // seen by the gather
    const identity = callIdentity(operation, this.name);
    return this.#openLinks().gathers.enqueue(
      read,
      async (shard) => {
        const isFirst = group.rank === 0;
        const output = isFirst ? new Uint8Array(shard.byteLength * group.worldSize) : null;
        const options = { root: 0, dtype: this.flat.dtype, tag: this.name, identity } as const;
        await group.gather(shard, output, options);
        return output ?? undefined;
      },
      { unready: this.#failing(operation) },
    );
  }

  /** Sets the parameter from its whole master bytes: this rank's shard, or what is summoned. */
  async scatterMaster(whole: Uint8Array): Promise<void> {
    const start = this.#context.group.rank * this.masterBytes;
    const target = this.#summoned;
    if (target !== undefined) {
      target.write(whole);
    } else {
      await this.writeMaster(whole.subarray(start, start + this.masterBytes));
    }
  }

  /** Host bytes for the whole parameter in the master dtype, zeros. */
  emptyMaster(): Uint8Array {
    return new Uint8Array(this.masterBytes * this.layout.worldSize);
  }

  dispose(): void {
    if (!this.#isSharded) {
      for (const { tensor } of this.parameters) {
        tensor.storage.release();
      }
    }
    this.gradient.sum.reset();
    this.home?.close();
    this.flat.grad?.dispose();
    this.flat.grad = undefined;
    if (this.full !== this.flat.storage) {
      this.full.release();
    }
    this.flat.dispose();
  }

  /** Tells the other ranks that the shard cannot be read here. */
  #failing(operation: string): (error: unknown) => Promise<void> {
    return (error) => {
      this.failure = { error };
      return tellFailure(this.group, `${operation} of ${this.name}`, error);
    };
  }

  #openLinks(): UnitLinks {
    if (this.links === undefined) {
      throw new Error(`unit ${this.name}: its root has not opened links`);
    }
    return this.links;
  }
}

/** Bytes of elements [start, end) of a parameter, from the device or from its recipe. */
async function readPart(tensor: Tensor, start: number, end: number): Promise<Uint8Array> {
  const recipe = recipeOf(tensor);
  if (recipe !== undefined) {
    const values = new Float32Array(end - start);
    recipe.write(values, start);
    return new Uint8Array(values.buffer);
  }
  const elementBytes = byteSize(tensor.dtype);
  const first = (tensor.offset + start) * elementBytes;
  const length = (end - start) * elementBytes;
  const lead = first % 4; // devices read whole words
  const words = Math.ceil((lead + length) / 4) * 4;
  return (await tensor.storage.read(first - lead, words)).subarray(lead, lead + length);
}
