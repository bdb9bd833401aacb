// One flat parameter of an instance: this rank's shard of it, which is gathered from all ranks
// around its use, and its gradient, which is reduced over them. When that happens is the wrapper's
// business. See nn's Note [flat parameter].
//
// Note [published shard]
// The published shard is the shard in the dtype of computation as host bytes, made once per
// optimizer step: every gather starts from it and so never waits for the device. A shard that rests
// off the device needs none, because its bytes are on the host already.

import { type ProcessGroup, tellFailure } from '@shardweave/collectives';
import { type FlatLeaf, FlatParameter, restSize } from '@shardweave/nn/flat';
import type { Device, DType, Pass, Storage } from '@shardweave/tensor-core';
import { FsdpStateError } from '../errors.js';
import { callIdentity } from '../ranks/call-identity.js';
import { DeviceGradientHome } from './gradient-home.js';
import type { Placement } from './placement.js';
import { type ShardLayout, shardLayout } from './shard-layout.js';
import { type DivideFactors, UnitGradient } from './unit-gradient.js';
import type { UnitLinks } from './unit-links.js';

/** What the units of one instance share. */
export interface UnitContext {
  readonly device: Device;
  readonly group: ProcessGroup;
  /** Shards of this dtype are gathered in `computeDType`, others in their own dtype. */
  readonly masterDType: DType;
  readonly computeDType: DType;
  /** dtype of gradients on the wire. */
  readonly reduceDType: DType;
  readonly divide: Readonly<DivideFactors>;
  /** The store where the shards rest; undefined: on the device. */
  readonly placement: Placement | undefined;
  /** Whether reductions may share a collective. */
  readonly isBucketed: boolean;
  /** The instance that the units belong to. */
  readonly owner: object;
  /**
   * Whether gradients are reduced at the end of this backward; undefined before the first forward.
   */
  isSyncing(): boolean | undefined;
  /**
   * Called before each contribution to a gradient; an error that it throws refuses the
   * contribution.
   */
  onContribution(pass: Pass): void;
  /** Called when all gradients that a backward brings to a unit are in. */
  onFinal(unit: ShardedUnit): void;
  /** Called when a backward that reaches a unit has failed, maybe before it came to the unit. */
  onFailed(pass: Pass): void;
}

export class ShardedUnit extends FlatParameter {
  readonly layout: ShardLayout;
  readonly gradient: UnitGradient;
  links: UnitLinks | undefined = undefined;
  /**
   * Why this unit's shard could not be read last. The error may surface first as that of another
   * call.
   */
  failure: { readonly error: unknown } | undefined = undefined;
  readonly #context: UnitContext;
  #published: { readonly version: number; readonly bytes: Promise<Uint8Array> } | undefined;
  #publishedBuffer: Uint8Array | undefined;

  /**
   * Lays the parameters out and tells optimizers where their pieces are; the parameters keep their
   * own values until takeOver.
   */
  constructor(name: string, parameters: readonly FlatLeaf[], context: UnitContext) {
    const { device, group, placement } = context;
    const leaves = parameters.map(({ tensor }) => tensor);
    const masterDType = leaves[0]!.dtype;
    const layout = shardLayout(leaves.map(restSize), group.worldSize);
    const whole = { ...layout, elementCount: layout.shardLength * group.worldSize };
    const links = () => openLinks(name, this.links);
    super({
      name,
      device,
      parameters,
      layout: whole,
      shard: { index: group.rank, count: group.worldSize },
      computeDType: masterDType === context.masterDType ? context.computeDType : masterDType,
      fullTag: 'gathered',
      absentHint: `Flat parameter '${name}' is gathered inside its instance's forward, in the backward of what that returned, and inside summonFullParams. A loss kept in a field is outside of these: return it with the other results. A wrapped list is never called: wrap the modules in it.`,
      rest: placement,
      hostBuffers: () => links().hostBuffers,
    });
    this.#context = context;
    this.layout = layout;
    this.flat.name = `${name}.flat`;
    this.gradient = new UnitGradient({
      ...context,
      onFinal: () => context.onFinal(this),
      name,
      layout,
      leaves,
      home: this.home ?? new DeviceGradientHome(device, this.flat),
      links,
    });
    for (const leaf of leaves) {
      leaf.gradSink = this.gradient.sum;
    }
  }

  get rank(): number {
    return this.#context.group.rank;
  }

  get group(): ProcessGroup {
    return this.#context.group;
  }

  get isAllFrozen(): boolean {
    return this.parameters.every(({ tensor }) => !tensor.requiresGrad);
  }

  get hasFrozen(): boolean {
    return this.parameters.some(({ tensor }) => !tensor.requiresGrad);
  }

  // ---- gathering -------------------------------------------------------------------------------

  /** Queues the cast and read-back of the shard, unless the published bytes are current. */
  publish(): Promise<Uint8Array> {
    const { version } = this.flat.storage;
    if (this.#published?.version === version) {
      return this.#published.bytes;
    }
    const { device } = this.#context;
    const staging = device.storage(this.layout.shardLength, this.loadDType, 'staging');
    staging.fill();
    device.backend.run('cast', { x: this.flat.view(), out: staging.view() });
    const bytes = staging.read(0, staging.byteLength, this.#publishedBuffer);
    const keep = (read: Uint8Array) => {
      this.#publishedBuffer = read;
    };
    bytes.then(keep, () => undefined); // a failure is seen by the gather that awaits it
    staging.release();
    this.#published = { version, bytes };
    return bytes;
  }

  /**
   * The whole parameter, gathered from all ranks, which FSDP2 calls unshard. Where this rank is the
   * only one, it is its shard.
   */
  protected override gatherWhole(
    stored: Promise<Uint8Array> | undefined,
  ): Promise<Uint8Array> | undefined {
    const { group } = this.#context;
    if (group.worldSize === 1) {
      return stored;
    }
    const { gathers, hostBuffers } = this.#openLinks();
    return gathers.enqueue(
      stored ?? this.publish(),
      async (shard) => {
        const output = hostBuffers.take(this.wholeBytes);
        const { name, loadDType: dtype } = this;
        await group.allGather(shard, output, { dtype, tag: name, identity: name });
        if (stored !== undefined) {
          hostBuffers.give(shard);
        }
        return output;
      },
      { failed: this.#failing('a gather') },
    );
  }

  /** Whether gathers start from a published shard. */
  get isPublished(): boolean {
    return this.layout.worldSize > 1 && !this.home?.holdsState;
  }

  protected override lostWrite(what: string): FsdpStateError {
    return new FsdpStateError(
      `fsdp: expected the gathered parameters of '${this.name}' as they were, got a write into the ${what}, which would be lost. Write inside summonFullParams.`,
    );
  }

  // ---- full precision --------------------------------------------------------------------------

  /** The storage that the parameters point into while they are summoned. */
  get #summoned(): Storage | undefined {
    const { storage } = this.parameters[0]!.tensor;
    return storage === this.full ? undefined : storage;
  }

  /**
   * The whole parameter in the master dtype as host bytes. Every rank of the group has to call it.
   */
  async gatherMaster(operation: string): Promise<Uint8Array> {
    const { group } = this.#context;
    if (this.#summoned !== undefined) {
      return this.#summoned.read();
    }
    const read = this.read();
    if (group.worldSize === 1) {
      return read;
    }
    read.catch(() => undefined); // seen by the gather
    const identity = callIdentity(operation, this.name);
    // The gather comes behind those that a failed forward has started.
    return this.#openLinks().gathers.enqueue(
      read,
      async (shard) => {
        const output = new Uint8Array(shard.byteLength * group.worldSize);
        await group.allGather(shard, output, { dtype: this.flat.dtype, tag: this.name, identity });
        return output;
      },
      { failed: this.#failing(operation) },
    );
  }

  /**
   * Gathers as gatherMaster does, but only rank 0 of the group gets the bytes; the others hold no
   * more than their shard.
   */
  async gatherMasterToFirst(operation: string): Promise<Uint8Array | undefined> {
    const { group } = this.#context;
    if (this.#summoned !== undefined || group.worldSize === 1) {
      return this.gatherMaster(operation);
    }
    const read = this.read();
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
      { failed: this.#failing(operation) },
    );
  }

  /** Whether the parameters are summoned, in which case only a whole parameter can be set. */
  get isSummoned(): boolean {
    return this.#summoned !== undefined;
  }

  /** Sets the parameter from its whole master bytes: this rank's shard, or the summoned values. */
  async scatterMaster(whole: Uint8Array): Promise<void> {
    const start = this.#context.group.rank * this.byteLength;
    const target = this.#summoned;
    if (target !== undefined) {
      target.write(whole);
    } else {
      await this.write(whole.subarray(start, start + this.byteLength));
    }
  }

  /** Zeroed host bytes for the whole parameter in the master dtype. */
  emptyMaster(): Uint8Array {
    return new Uint8Array(this.byteLength * this.layout.worldSize);
  }

  override dispose(): void {
    this.gradient.sum.reset();
    super.dispose();
  }

  /** Tells the other ranks that the shard cannot be read here. */
  #failing(operation: string): (error: unknown) => Promise<void> {
    return (error) => {
      this.failure = { error };
      return tellFailure(this.group, `${operation} of ${this.name}`, error);
    };
  }

  #openLinks(): UnitLinks {
    return openLinks(this.name, this.links);
  }
}

function openLinks(name: string, links: UnitLinks | undefined): UnitLinks {
  if (links === undefined) {
    throw new Error(`unit ${name}: its root has not opened links`);
  }
  return links;
}
