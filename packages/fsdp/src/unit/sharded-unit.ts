// One flat parameter of an instance: this rank's shard of it, which is gathered from all ranks
// around its use, and its gradient, which is reduced over them. When that happens is the wrapper's
// business. See nn's Note [flat parameter]. With shardTrained: false the shard of a trained one is
// all of it, on every rank.
//
// Note [published shard]
// The published shard is the shard in the dtype of computation as host bytes, made once per
// optimizer step: every gather starts from it and so never waits for the device. A shard that rests
// off the device needs none, because its bytes are on the host already. Nor does one on a device
// that computes in the host's memory, if it rests in that dtype: gathers read it there, once the
// step that wrote it has run.

import { type ProcessGroup, tellFailure } from '@shardweave/collectives';
import {
  type FlatLeaf,
  FlatParameter,
  type FullCopy,
  restSize,
  shardTable,
} from '@shardweave/nn/flat';
import type { DType, Storage, Tensor } from '@shardweave/tensor-core';
import { FsdpConfigError, FsdpStateError } from '../errors.js';
import { callIdentity } from '../ranks/call-identity.js';
import type { RankGroups } from '../ranks/rank-groups.js';
import type { Placement } from './placement.js';
import { type ShardLayout, shardLayout } from './shard-layout.js';
import { TokenTable } from './token-table.js';
import { type GradientContext, type ReduceOptions, UnitGradient } from './unit-gradient.js';
import type { UnitLinks } from './unit-links.js';

/** What an instance's options say of its units. */
export interface UnitOptions extends ReduceOptions {
  readonly groups: RankGroups;
  /** Whether trained parameters are sharded; if not, each rank has them whole. */
  readonly shardTrained: boolean;
  /**
   * dtype of the shards, and so of the parameters before they are sharded. Shards of it are
   * gathered in `computeDType`, others in their own dtype.
   */
  readonly masterDType: DType;
  readonly computeDType: DType;
  /** The store where the shards rest; undefined: on the device. */
  readonly placement: Placement | undefined;
}

/** What becomes one flat parameter. */
export interface UnitPlan {
  readonly name: string;
  readonly parameters: readonly FlatLeaf[];
  /** Whether it is a token table of which ranks use their parts. Default false. */
  readonly isTable?: boolean;
}

/** What the units of one instance share. */
export interface UnitContext extends GradientContext {
  readonly options: UnitOptions;
  /** @throws {FsdpStateError} outside a forward, in which all ranks take part, and its backward */
  requireCall(): void;
  /** Called when all gradients that a backward brings to a unit are in. */
  onFinal(unit: ShardedUnit): void;
}

export class ShardedUnit {
  readonly name: string;
  readonly parameters: readonly FlatLeaf[];
  readonly group: ProcessGroup;
  readonly layout: ShardLayout;
  /** Which shard of the layout is this rank's. */
  readonly shardIndex: number;
  /** Whether some of it was trained when it was wrapped. */
  readonly isTrained: boolean;
  /** Whether every rank of the group has all of it, and gradients are added up by all-reduces. */
  readonly isWhole: boolean;
  /** Whether ranks compute with their parts of it, so that it is not gathered for computation. */
  readonly isTable: boolean;
  /** This rank's shard, and the whole parameter while it is gathered. */
  readonly values: FlatParameter;
  readonly gradient: UnitGradient;
  links: UnitLinks | undefined = undefined;
  /**
   * Why this unit's shard could not be read last. The error may surface first as that of another
   * call.
   */
  failure: { readonly error: unknown } | undefined = undefined;
  #published: PublishedShard | undefined;

  /**
   * Lays the parameters out and tells optimizers where their pieces are; the parameters keep their
   * own values until they are taken over.
   * @throws {FsdpConfigError} for trained and frozen ones together with shardTrained: false
   */
  constructor({ name, parameters, isTable = false }: UnitPlan, context: UnitContext) {
    const { placement, groups, masterDType, computeDType, shardTrained } = context.options;
    const group = groups.processGroup;
    const trained = parameters.filter(({ tensor }) => tensor.requiresGrad);
    if (!shardTrained && trained.length > 0 && trained.length < parameters.length) {
      const frozen = parameters.find(({ tensor }) => !tensor.requiresGrad)!;
      throw new FsdpConfigError(
        `fsdp: expected only trained or only frozen parameters in flat parameter '${name}' with shardTrained: false, got '${trained[0]!.path}' and the frozen '${frozen.path}'. Make a group for each.`,
      );
    }
    this.isTrained = trained.length > 0;
    this.isWhole = !shardTrained && this.isTrained && group.worldSize > 1;
    const [rank, worldSize] = this.isWhole ? [0, 1] : [group.rank, group.worldSize];
    this.shardIndex = rank;
    const leaves = parameters.map(({ tensor }) => tensor);
    const [{ device, dtype, shape }] = leaves as [Tensor, ...Tensor[]];
    this.name = name;
    this.parameters = parameters;
    this.group = group;
    this.isTable = isTable;
    this.layout = shardLayout(leaves.map(restSize), worldSize, isTable ? shape[1] : 1);
    const layout = { ...this.layout, elementCount: this.layout.shardLength * worldSize };
    const links = () => this.#openLinks();
    this.values = new FlatParameter({
      name,
      device,
      parameters,
      layout,
      shard: { index: rank, count: worldSize },
      computeDType: dtype === masterDType ? computeDType : dtype,
      fullTag: 'gathered',
      absentHint: isTable
        ? `Token table '${name}' is in parts (vocabParallel), and only Embedding and LanguageHead of nn can use it so. Leave the option out where another module reads it.`
        : `Flat parameter '${name}' is gathered inside its instance's forward, in the backward of what that returned, and inside summonFullParams. A loss kept in a field is outside of these: return it with the other results. A wrapped list is never called: wrap the modules in it.`,
      rest: placement,
      hostBuffers: () => links().hostBuffers,
      gatherWhole: (stored) => (worldSize === 1 ? stored : this.#gatherWhole(stored)),
      lostWrite: (what) =>
        new FsdpStateError(
          `fsdp: expected the gathered parameters of '${name}' as they were, got a write into the ${what}, which would be lost. Write inside summonFullParams.`,
        ),
    });
    this.flat.name = `${name}.flat`;
    const onFinal = () => context.onFinal(this);
    this.gradient = new UnitGradient(
      { values: this.values, layout, links, onFinal, isWhole: this.isWhole },
      context,
    );
    const isHere = !shardTrained && this.isTrained && placement === undefined;
    if (isTable) {
      const failing = (what: string) => this.#failing(`an exchange of ${what}`);
      const { requireCall } = context;
      const shard = { name, group, flat: this.flat, index: rank, links, failing, requireCall };
      shardTable(leaves[0]!, new TokenTable(shard, shape as [number, number]));
    }
    for (const leaf of leaves) {
      leaf.gradSink = this.gradient.sum;
      if (isHere) {
        leaf.piece = { ...leaf.piece!, isPacked: true }; // this rank can save it alone
      }
    }
  }

  /** This rank's shard, which the optimizer steps. */
  get flat(): Tensor {
    return this.values.flat;
  }

  /** The whole parameter while it is gathered. */
  get full(): FullCopy {
    return this.values.full;
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
    const before = this.#published;
    if (before?.version === version) {
      return before.bytes;
    }
    const { device } = this.flat;
    const staging = device.storage(this.layout.shardLength, this.full.loadDType, 'staging');
    staging.fill();
    device.backend.run('cast', { x: this.flat.view(), out: staging.view() });
    const bytes = staging.read(0, staging.byteLength, before?.buffer);
    const published: PublishedShard = { version, bytes, buffer: before?.buffer };
    const keep = (read: Uint8Array) => {
      published.buffer = read;
    };
    bytes.then(keep, () => undefined); // a failure is seen by the gather that awaits it
    staging.release();
    this.#published = published;
    return bytes;
  }

  /** The whole parameter, gathered from all ranks, which FSDP2 calls unshard. */
  async #gatherWhole(stored: Promise<Uint8Array> | undefined): Promise<Uint8Array> {
    const { gathers, hostBuffers } = this.#openLinks();
    const { storage, device } = this.flat;
    const isLent = stored === undefined && this.#isLent;
    const loan = isLent ? device.pool.blocks.lend(storage) : undefined;
    const part = loan && storage.view();
    // A dry device lends none.
    const own = () => (isLent ? storage.read(0, storage.byteLength) : this.publish());
    const shard = stored ?? loan?.bytes ?? own();
    const { loadDType: dtype } = this.full;
    const whole = this.full.takeBuffer();
    const { name } = this;
    try {
      return await gathers.enqueue(
        Promise.all([shard, whole]),
        async ([input, output]) => {
          const place = part && this.full.ownPlacer(output, part);
          let isOwnMissing = false;
          const placeOwn = () => {
            isOwnMissing = true;
          };
          const options = { dtype, tag: name, identity: name, ...(place && { placeOwn }) };
          await this.group.allGather(input, output, options);
          if (isOwnMissing) {
            place!(); // after the call, which a wrapper of the group may answer otherwise
          }
          if (stored !== undefined) {
            hostBuffers.give(input);
          }
          return output;
        },
        { failed: this.#failing('a gather') },
      );
    } catch (error) {
      this.full.give(await whole);
      throw error;
    } finally {
      loan?.close();
    }
  }

  /** Whether gathers start from a published shard. */
  get isPublished(): boolean {
    return (
      !this.isTable && this.layout.worldSize > 1 && !this.values.home?.holdsState && !this.#isLent
    );
  }

  /** Whether gathers read the shard where it rests. */
  get #isLent(): boolean {
    const { device, dtype } = this.flat;
    return device.backend.settle !== undefined && dtype === this.full.loadDType;
  }

  // ---- full precision --------------------------------------------------------------------------

  /** The storage that the parameters point into while they are summoned. */
  get #summoned(): Storage | undefined {
    const { storage } = this.parameters[0]!.tensor;
    return storage === this.full.storage ? undefined : storage;
  }

  /**
   * The whole parameter in the master dtype as host bytes. Every rank of the group has to call it.
   */
  gatherMaster(operation: string): Promise<Uint8Array> {
    const { group } = this;
    return this.#gatherMaster(operation, async (shard, options) => {
      const output = new Uint8Array(shard.byteLength * group.worldSize);
      await group.allGather(shard, output, options);
      return output;
    });
  }

  /**
   * Gathers as gatherMaster does, but only rank 0 of the group gets the bytes; the others hold no
   * more than their shard.
   */
  gatherMasterToFirst(operation: string): Promise<Uint8Array | undefined> {
    return this.#gatherMaster(operation, (shard, options) =>
      gatherToFirst(this.group, shard, options),
    );
  }

  async #gatherMaster<T>(
    operation: string,
    gather: (shard: Uint8Array, options: GatherOptions) => Promise<T>,
  ): Promise<T | Uint8Array> {
    if (this.#summoned !== undefined) {
      return this.#summoned.read();
    }
    const read = this.values.read();
    if (this.layout.worldSize === 1) {
      return read;
    }
    read.catch(() => undefined); // seen by the gather
    const { name: tag, flat } = this;
    const options = { dtype: flat.dtype, tag, identity: callIdentity(operation, tag) };
    // The gather comes behind those that a failed forward has started.
    return this.#openLinks().gathers.enqueue(read, (shard) => gather(shard, options), {
      failed: this.#failing(operation),
    });
  }

  /** Whether the parameters are summoned, in which case only a whole parameter can be set. */
  get isSummoned(): boolean {
    return this.#summoned !== undefined;
  }

  /** Sets the parameter from its whole master bytes: this rank's shard, or the summoned values. */
  async scatterMaster(whole: Uint8Array): Promise<void> {
    const { byteLength } = this.flat.storage;
    const start = this.shardIndex * byteLength;
    const target = this.#summoned;
    if (target !== undefined) {
      target.write(whole);
    } else {
      await this.values.write(whole.subarray(start, start + byteLength));
    }
  }

  dispose(): void {
    if (this.isTable) {
      shardTable(this.parameters[0]!.tensor, undefined);
    }
    this.gradient.sum.reset();
    this.values.dispose();
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

interface PublishedShard {
  /** The version of the shard that the bytes are of. */
  readonly version: number;
  readonly bytes: Promise<Uint8Array>;
  /** What the last read filled, for the next one to fill. */
  buffer: Uint8Array | undefined;
}

interface GatherOptions {
  readonly dtype: DType;
  readonly tag: string;
  readonly identity: string;
}

/** All ranks' shards one after another on rank 0 of the group, and undefined on the others. */
export async function gatherToFirst(
  group: ProcessGroup,
  shard: Uint8Array,
  options: GatherOptions,
): Promise<Uint8Array | undefined> {
  const isFirst = group.rank === 0;
  const output = isFirst ? new Uint8Array(shard.byteLength * group.worldSize) : null;
  await group.gather(shard, output, { root: 0, ...options });
  return output ?? undefined;
}
