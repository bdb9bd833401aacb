// Keeps the plan of a wrapper's buckets. It makes the plan when the limits of all ranks are known,
// makes it anew where the set of trained parameters has changed, and checks that ranks train equal
// parameters before anything of them is sent.

import { byteSize } from '@shardweave/dtypes';
import { HostBuffers, masterOf, type PackedGradient } from '@shardweave/nn/flat';
import type { Device, Tensor } from '@shardweave/tensor-core';
import type { ResolvedDdpOptions } from '../options.js';
import { requireAgreement } from '../ranks/agreement.js';
import type { WrapperLanes } from '../ranks/wrapper-lanes.js';
import type { ActiveParameter } from './bucket.js';
import { BucketPlan, guessStructure, type PlanContext } from './bucket-plan.js';
import { Reach } from './reach.js';

export interface PlanKeeperOptions {
  readonly device: Device;
  readonly options: ResolvedDdpOptions;
  readonly lanes: WrapperLanes;
  /** The parameters that are trained at the moment. */
  readonly trainable: () => readonly ActiveParameter[];
  /** What takes the reduced gradients of a packed parameter; undefined for another one. */
  readonly packedOf: (leaf: Tensor) => PackedGradient | undefined;
}

export class PlanKeeper {
  /** Checks that backwards reach the parameters that the plan's ranks wait for. */
  readonly reach: Reach;
  readonly #options: PlanKeeperOptions;
  #hostBuffers = new HostBuffers();
  #context: PlanContext | undefined;
  #plan: BucketPlan | undefined;
  #isAgreed = false;

  constructor(options: PlanKeeperOptions) {
    this.#options = options;
    this.reach = new Reach(options.lanes.group, options.options);
  }

  /** The present plan; undefined before the first forward. */
  get plan(): BucketPlan | undefined {
    return this.#plan;
  }

  /** The limits that plans are made with; undefined before `open`. */
  get context(): PlanContext | undefined {
    return this.#context;
  }

  /** Host memory for the buckets of the present plan. */
  get hostBuffers(): HostBuffers {
    return this.#hostBuffers;
  }

  /** Agrees with the other ranks on how large a bucket may be. Collective. */
  async open(): Promise<void> {
    const { device, options, lanes, packedOf } = this.#options;
    const { limits } = device.backend.info;
    const bytes = Math.min(limits.maxViewBytes, limits.maxBufferBytes);
    const ownElements = Math.floor(bytes / byteSize('f32')); // what 16 bits are cast to fits, too
    this.#context = { device, options, packedOf, maxElements: await lanes.leastOf(ownElements) };
  }

  /** Makes the buckets anew where the set of trainable parameters has changed. */
  refresh(): void {
    const context = this.#context;
    if (context === undefined) {
      return;
    }
    const active = this.#options.trainable();
    if (this.#plan?.isFor(active) === true) {
      return;
    }
    this.#isAgreed = false;
    this.reach.forget();
    this.#replace(active, guessStructure(active, context), { isLearned: false });
  }

  /** Makes the buckets of the same parameters anew, in the order that a backward has shown. */
  learn(structure: readonly (readonly number[])[]): void {
    this.#replace(this.#plan!.active, structure, { isLearned: true });
  }

  /** Compares a new set of trainable parameters over ranks; undefined where that has been done. */
  agree(): Promise<unknown> | undefined {
    const { lanes } = this.#options;
    if (this.#isAgreed || !lanes.areOpen) {
      return undefined;
    }
    this.#isAgreed = true;
    const lines = this.#plan!.active.map(describeParameter);
    const options = {
      what: 'trainable parameters',
      advice: 'Build, wrap and freeze the model alike on all ranks.',
    };
    return lanes.inTurn((group) => requireAgreement(group, lines, options));
  }

  #replace(
    active: readonly ActiveParameter[],
    structure: readonly (readonly number[])[],
    options: { readonly isLearned: boolean },
  ): void {
    this.#plan = new BucketPlan(active, structure, this.#context!, options);
    this.#hostBuffers = new HostBuffers(); // the new plan needs other sizes
  }
}

/** The text of a parameter that ranks compare. */
export function describeParameter({ path, tensor }: ActiveParameter): string {
  const rests = masterOf(tensor).dtype;
  const dtype = rests === tensor.dtype ? rests : `${tensor.dtype} of ${rests}`;
  return `${path} ${dtype} [${tensor.shape.join(', ')}]`;
}
