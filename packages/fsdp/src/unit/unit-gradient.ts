// What sharding adds to a unit's flat gradient: the whole gradient goes to the bucketer, which
// hands back this shard's part of the sum over ranks, or all of it where every rank has the whole
// parameter. At world size 1 it becomes the shard's gradient as it is.
//
// Note [a backward that fails]
// A backward that fails on all ranks alike is as if it had never run: what it added is dropped. It
// cannot be taken out again of two things: a sum that earlier backwards left in noSync, once it has
// added to it or sent it off, and on a single rank the shard's gradient, to which it adds before it
// ends. These are torn. They are dropped, too, and the next reduction is refused until zeroGrad.

import {
  FlatGradient,
  type FlatGradientOptions,
  type FlatParameter,
  type GroupCall,
  type GroupSums,
} from '@shardweave/nn/flat';
import type { Device, DType, HostBlock, Pass, Storage, Tensor } from '@shardweave/tensor-core';
import { DeviceGradientHome, type GradientHome } from './gradient-home.js';
import type { ReduceScatterBucketer } from './reduce-scatter-bucketer.js';
import type { ShardLayout } from './shard-layout.js';
import { isSameReduction, type UnitLinks } from './unit-links.js';

/**
 * What gradients are divided by before and after a reduction; read whenever a reduction is made.
 */
export interface DivideFactors {
  predivide: number;
  postdivide: number;
}

/** How gradients are reduced. */
export interface ReduceOptions {
  /** dtype of gradients on the wire. */
  readonly reduceDType: DType;
  /** The divisors may change between steps. */
  readonly divide: DivideFactors;
  /** Whether reductions may share a collective. */
  readonly isBucketed: boolean;
}

/** What the gradients of one instance's units share. */
export interface GradientContext {
  readonly options: ReduceOptions;
  /** The instance that the units belong to. */
  readonly owner: object;
  /**
   * Whether gradients are reduced at the end of this backward; undefined before the first forward.
   */
  isSyncing(): boolean | undefined;
  /** The sums of a step's groups, by gradient; undefined where each backward is reduced. */
  groups(): GroupSums<object> | undefined;
  /** Called before each contribution; an error that it throws refuses the contribution. */
  onContribution(pass: Pass): void;
  /** Called when a backward that reaches a unit has failed, maybe before it came to the unit. */
  onFailed(pass: Pass): void;
}

export interface UnitGradientOptions {
  /** The flat parameter that the gradient is of. */
  readonly values: FlatParameter;
  /** Where each parameter lies in the whole gradient, which ends in padding. */
  readonly layout: ShardLayout;
  /** Whether every rank has the whole parameter, and so gets the sum of the whole gradient. */
  readonly isWhole: boolean;
  /** The links of its group, which are open from the first forward on. */
  links(): UnitLinks;
  /** Called when all gradients that a backward brings are in. */
  onFinal(): void;
}

/** A sum that notes whether a backward has changed it, and which leaves have lost a gradient. */
class UnitSum extends FlatGradient {
  isTouched = false;
  readonly torn = new Set<Tensor>();
  readonly #onFailed: (pass: Pass) => void;
  readonly #onClear: () => void;

  constructor(options: FlatGradientOptions, on: { failed(pass: Pass): void; clear(): void }) {
    super(options);
    this.#onFailed = on.failed;
    this.#onClear = on.clear;
  }

  failed(_error: unknown, pass: Pass): void {
    this.#onFailed(pass);
  }

  override target(leaf: Tensor): Tensor | undefined {
    this.isTouched = true;
    return super.target(leaf);
  }

  override add(leaf: Tensor, gradient: Tensor): void {
    this.isTouched = true;
    super.add(leaf, gradient);
  }

  override take(options: { readonly leaves?: Iterable<Tensor> } = {}): Storage | undefined {
    this.isTouched = true;
    return super.take(options);
  }

  override clear(leaves: readonly Tensor[]): void {
    this.#onClear();
    this.drop(leaves);
  }

  /** Clears the leaves of a backward that has failed, which nobody has asked for. */
  drop(leaves: readonly Tensor[]): void {
    for (const leaf of leaves) {
      this.torn.delete(leaf);
    }
    super.clear(leaves);
  }
}

export class UnitGradient {
  readonly #sum: UnitSum;
  readonly #options: UnitGradientOptions;
  readonly #reduce: ReduceOptions;
  readonly #leaves: readonly Tensor[];
  /** Takes what is reduced. */
  readonly #home: GradientHome;
  readonly #groups: () => GroupSums<object> | undefined;
  /** The leaves that had a gradient when the present backward began. */
  #before: { readonly left: readonly Tensor[]; readonly resting: readonly Tensor[] } = {
    left: [],
    resting: [],
  };
  /** Whether the present backward has added to the shard's gradient. */
  #isAdded = false;
  /** The end of an addition that needed no reduction, where it has to be waited for. */
  #added: Promise<void> | undefined;

  constructor(options: UnitGradientOptions, context: GradientContext) {
    const { values, layout, onFinal } = options;
    const { flat, home } = values;
    const { device } = flat;
    const { owner, onContribution, onFailed } = context;
    this.#groups = () => context.groups();
    this.#options = options;
    this.#reduce = context.options;
    this.#leaves = values.parameters.map(({ tensor }) => tensor);
    this.#home = home?.gradient ?? new DeviceGradientHome(flat);
    const leaves = this.#leaves;
    // Gradients that wait for a later backward add up in f32, whatever dtype the wire carries.
    const dtype = () => {
      const isSyncing = context.isSyncing();
      return isSyncing === undefined ? undefined : isSyncing ? this.#reduce.reduceDType : 'f32';
    };
    this.#sum = new UnitSum(
      { device, layout, leaves, owner, dtype, onContribution, onFinal },
      { failed: onFailed, clear: () => context.groups()?.clear() },
    );
  }

  /** The sum that backward adds the gradients of the leaves to. */
  get sum(): FlatGradient {
    return this.#sum;
  }

  /** Whether a failed backward has torn gradients that nobody has cleared since. */
  get isTorn(): boolean {
    return this.#sum.torn.size > 0;
  }

  /** Called when a backward begins. See Note [a backward that fails]. */
  beginPass(): void {
    const leaves = this.#leaves;
    this.#before = {
      left: leaves.filter((leaf) => this.#sum.hasContributed(leaf)),
      resting: leaves.filter((leaf) => this.#sum.hasGradient(leaf)),
    };
    this.#sum.isTouched = false;
    this.#isAdded = false;
  }

  /** Called when the backward has failed. */
  failPass(): void {
    if (!this.#sum.isTouched) {
      return;
    }
    const leaves = this.#leaves;
    const { left, resting } = this.#before;
    this.#sum.reset();
    this.#sum.drop(this.#isAdded ? leaves : leaves.filter((leaf) => !resting.includes(leaf)));
    for (const leaf of this.#isAdded ? [...left, ...resting] : left) {
      this.#sum.torn.add(leaf);
    }
  }

  /**
   * Hands the whole gradient over to be reduced; never waits. Does nothing where no parameter
   * contributed.
   * @param options.leaves the parameters that have a gradient on some rank; where this rank has
   * none, zeros stand for it. Default: the parameters that were contributed to, which are then
   * alike on all ranks
   */
  startReduce(
    bucketer: ReduceScatterBucketer,
    options: { readonly leaves?: readonly Tensor[] } = {},
  ): void {
    const whole = this.#sum.take(options);
    if (whole === undefined) {
      return;
    }
    const { name, flat } = this.#options.values;
    const { device } = flat;
    const { layout, isWhole, links: openLinks } = this.#options;
    const { reduceDType, divide, isBucketed } = this.#reduce;
    const home = this.#home;
    if (divide.predivide !== 1) {
      scaleInPlace(device, whole, 1 / divide.predivide);
    }
    const links = openLinks();
    const groups = isWhole ? undefined : this.#groups();
    const call = groups?.present;
    if (links.reduceGroup.worldSize === 1 && links.replicas === undefined && groups === undefined) {
      this.#isAdded = true;
      const added = home.addStorage(whole, 1 / divide.postdivide);
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
      device.pool.blocks.fill(outgoing);
      device.backend.run('cast', { x: whole.view(), out: outgoing.view() });
      whole.release();
    }
    bucketer.add({
      name,
      whole: outgoing,
      worldSize: layout.worldSize,
      isWhole,
      links,
      isBucketed,
      makeBlock: (byteLength) =>
        home instanceof DeviceGradientHome && groups === undefined
          ? device.pool.blocks.take(byteLength)
          : undefined,
      onReduced:
        groups === undefined
          ? ([shard], block) => this.#add(shard!, block)
          : (sums) => this.#addGroups(sums, groups, call!),
    });
    outgoing.release(); // its read-back is queued
  }

  /** Adds a reduced shard to the shard's gradient. */
  #add(shard: Uint8Array, block: HostBlock | undefined): void | Promise<void> {
    const { flat } = this.#options.values;
    const { reduceDType, divide } = this.#reduce;
    const scale = 1 / divide.postdivide;
    this.#isAdded = true;
    if (block === undefined) {
      return this.#home.addBytes(shard, reduceDType, scale);
    }
    const reduced = flat.device.storage(flat.size, reduceDType, 'staging');
    reduced.hold(block);
    const added = this.#home.addStorage(reduced, scale);
    reduced.release();
    return added;
  }

  /** Adds the sums of a round to those that are held, which become the gradient after the last. */
  async #addGroups(
    sums: readonly Uint8Array[],
    groups: GroupSums<object>,
    call: GroupCall,
  ): Promise<void> {
    await groups.push(this, call, { byteLength: sums[0]!.byteLength, parts: sums });
    const held = groups.heldOf(this);
    if (call.isLast && held?.isWhole === true) {
      await this.#add(held.place, undefined);
    }
  }

  /** Waits for what was added without a reduction. */
  async finish(): Promise<void> {
    const added = this.#added;
    this.#added = undefined;
    await added;
  }

  /** What its gradient is divided by at present. */
  get divide(): Readonly<DivideFactors> {
    return this.#reduce.divide;
  }

  /** Whether its gradient shares buckets with those that are reduced over `links` in `dtype`. */
  isReducedWith(links: UnitLinks, dtype: DType): boolean {
    const { isBucketed, reduceDType } = this.#reduce;
    return isBucketed && reduceDType === dtype && isSameReduction(this.#options.links(), links);
  }
}

function scaleInPlace(device: Device, storage: Storage, scale: number): void {
  const view = storage.view();
  device.backend.run('affine', { x: view, out: view, scale, shift: 0 });
}
