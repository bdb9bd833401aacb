// What sharding adds to a unit's flat gradient: the whole gradient goes to the bucketer, which
// hands back this shard's part of the sum over ranks. At world size 1 it becomes the shard's
// gradient as it is.

import { FlatGradient } from '@shardweave/nn/flat';
import type { Device, DType, Pass, Storage, Tensor } from '@shardweave/tensor-core';
import type { GradientHome } from './gradient-home.js';
import type { ReduceScatterBucketer } from './reduce-scatter-bucketer.js';
import type { ShardLayout } from './shard-layout.js';
import type { UnitLinks } from './unit-links.js';

/**
 * What gradients are divided by before and after a reduction; read whenever a reduction is made.
 */
export interface DivideFactors {
  predivide: number;
  postdivide: number;
}

export interface UnitGradientContext {
  /** The name in errors and traces. */
  readonly name: string;
  readonly device: Device;
  readonly layout: ShardLayout;
  /** The parameters, in the layout's order. */
  readonly leaves: readonly Tensor[];
  /** Takes what is reduced. */
  readonly home: GradientHome;
  /** dtype of gradients on the wire. */
  readonly reduceDType: DType;
  readonly divide: Readonly<DivideFactors>;
  /** Whether its reduction may share a collective with others. */
  readonly isBucketed: boolean;
  /** The links of its group, which are open from the first forward on. */
  links(): UnitLinks;
  /**
   * Whether gradients are reduced at the end of this backward; undefined before the first forward.
   */
  isSyncing(): boolean | undefined;
  /** Called before each contribution; an error that it throws refuses the contribution. */
  onContribution(pass: Pass): void;
  /** Called when all gradients that a backward brings are in. */
  onFinal(): void;
}

export class UnitGradient {
  /** The sum that backward adds the gradients of the leaves to. */
  readonly sum: FlatGradient;
  readonly #context: UnitGradientContext;
  /** The end of an addition that needed no reduction, where it has to be waited for. */
  #added: Promise<void> | undefined;

  constructor(context: UnitGradientContext) {
    const { layout, reduceDType } = context;
    this.#context = context;
    this.sum = new FlatGradient({
      ...context,
      layout: { ...layout, elementCount: layout.shardLength * layout.worldSize },
      // Gradients that wait for a later backward add up in f32, whatever dtype the wire carries.
      dtype: () => {
        const isSyncing = context.isSyncing();
        return isSyncing === undefined ? undefined : isSyncing ? reduceDType : 'f32';
      },
    });
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
    const whole = this.sum.take(options);
    if (whole === undefined) {
      return;
    }
    const { name, device, layout, reduceDType, divide, isBucketed, home } = this.#context;
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

  /** What its gradient is divided by at present. */
  get divide(): Readonly<DivideFactors> {
    return this.#context.divide;
  }

  /** Whether its gradient shares buckets with those that are reduced over `links` in `dtype`. */
  isReducedWith(links: UnitLinks, dtype: DType): boolean {
    const own = this.#context.links();
    return (
      this.#context.isBucketed &&
      this.#context.reduceDType === dtype &&
      own.reduceGroup === links.reduceGroup &&
      own.replicas?.group === links.replicas?.group
    );
  }
}

function scaleInPlace(device: Device, storage: Storage, scale: number): void {
  const view = storage.view();
  device.backend.run('affine', { x: view, out: view, scale, shift: 0 });
}
