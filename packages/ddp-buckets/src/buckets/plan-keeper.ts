// Keeps the plan of a wrapper's buckets. It makes the plan when the limits of all ranks are known,
// makes it anew where the set of trained parameters has changed, and checks that ranks train equal
// parameters before anything of them is sent.

import { byteSize } from '@shardweave/dtypes';
import { HostBuffers, masterOf } from '@shardweave/nn/flat';
import { requireAgreement } from '../ranks/agreement.js';
import { BucketPlan, guessStructure, type PlanContext } from './bucket-plan.js';
import { Reach } from './reach.js';
import type { ActiveParameter, WrapperContext } from './wrapped-parameters.js';

export class PlanKeeper {
  /** Checks that backwards reach the parameters that the plan's ranks wait for. */
  readonly reach: Reach;
  readonly #wrapper: WrapperContext;
  #hostBuffers = new HostBuffers();
  #context: PlanContext | undefined;
  #plan: BucketPlan | undefined;
  #isAgreed = false;

  constructor(wrapper: WrapperContext) {
    this.#wrapper = wrapper;
    this.reach = new Reach(wrapper.lanes.group, wrapper.options);
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
    const { device, lanes } = this.#wrapper;
    const { limits } = device.backend.info;
    const bytes = Math.min(limits.maxViewBytes, limits.maxBufferBytes);
    const ownElements = Math.floor(bytes / byteSize('f32')); // what 16 bits are cast to fits, too
    const maxElements = await lanes.leastOf(ownElements);
    this.#context = { wrapper: this.#wrapper, maxElements };
  }

  /** Makes the buckets anew where the set of trainable parameters has changed. */
  refresh(): void {
    const context = this.#context;
    if (context === undefined) {
      return;
    }
    const active = this.#wrapper.parameters.trained();
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
    const { lanes } = this.#wrapper;
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
