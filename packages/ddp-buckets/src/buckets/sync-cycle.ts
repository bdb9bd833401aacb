// One backward whose gradients are reduced: buckets fill, are sent in their order while backward
// goes on, and are received at its end.
//
// Note [order of collectives]
// Bucket i is sent when it is full and bucket i - 1 has been sent, on lane i mod n. Whatever else
// the ranks must agree on (who takes part, which parameters exist, which were used, the learned
// order) goes over the first lane, before the first bucket or after the last.

import type { ProcessGroup } from '@shardweave/collectives';
import type { GroupCall, GroupSums, HostBuffers } from '@shardweave/nn/flat';
import type { Tensor } from '@shardweave/tensor-core';
import { allReduceHook } from '../communication-hooks/all-reduce-hook.js';
import { DdpStateError } from '../errors.js';
import { tellOthers } from '../ranks/tell-others.js';
import type { StepClock } from '../step-timings.js';
import type { Bucket } from './bucket.js';
import type { BucketPlan } from './bucket-plan.js';
import type { LocalGradients } from './local-gradients.js';
import type { WrapperContext } from './wrapped-parameters.js';

export interface CycleOptions {
  /** The parameters that get a gradient in this backward. */
  readonly reached: ReadonlySet<Tensor>;
  /** What backwards that were not reduced have left. */
  readonly locals: LocalGradients;
  readonly clock: StepClock;
  readonly plan: BucketPlan;
  readonly hostBuffers: HostBuffers;
  /** The agreement on parameters and participants; no bucket is sent before it. */
  readonly agreed: Promise<unknown>;
  /**
   * The identity of its collectives, which ranks compare: the wrapper and the number of the
   * backward.
   */
  readonly identity: string;
  /** The sums of groups and the present call of a step; undefined where each backward is one. */
  readonly groups?: { readonly sums: GroupSums<Bucket>; readonly call: GroupCall } | undefined;
}

/** How a bucket's result is used, which is known after the agreement. */
export interface CycleOutcome {
  readonly postdivide: number;
  /** Tells which parameters of the plan (by number) get a gradient. */
  readonly isUsed: (index: number) => boolean;
}

export class SyncCycle {
  readonly plan: BucketPlan;
  /** The parameters that get a gradient in this backward. */
  readonly reached: ReadonlySet<Tensor>;
  /** The parameters (by number) in the order in which their gradients became final. */
  readonly arrived: number[] = [];
  /** Rejects where the ranks don't agree, in which case nothing of the backward is sent. */
  readonly agreed: Promise<unknown>;
  readonly identity: string;
  readonly #wrapper: WrapperContext;
  readonly #options: CycleOptions;
  /** The parameters to whose gradients this rank has something to add. */
  readonly #used = new Set<Tensor>();
  readonly #sums: (Promise<Uint8Array> | undefined)[] = [];
  #failure: { readonly error: unknown } | undefined;

  constructor(wrapper: WrapperContext, options: CycleOptions) {
    this.#wrapper = wrapper;
    this.#options = options;
    this.plan = options.plan;
    this.reached = options.reached;
    this.agreed = options.agreed;
    this.agreed.catch(() => undefined); // seen by whoever ends the cycle
    this.identity = options.identity;
    for (const bucket of this.plan.buckets) {
      bucket.begin((leaf) => options.locals.has(leaf));
    }
    for (const { tensor } of this.plan.active) {
      if (!this.reached.has(tensor)) {
        this.#finish(tensor);
      }
    }
  }

  /** The error that made the first bucket fail; later calls fail because of it. */
  get failure(): { readonly error: unknown } | undefined {
    return this.#failure;
  }

  /** The place where an op may write a first contribution itself. */
  target(leaf: Tensor): Tensor | undefined {
    return this.plan.placeOf(leaf)?.bucket.gradient.target(leaf);
  }

  /** Adds a contribution to its bucket. */
  accept(leaf: Tensor, gradient: Tensor): void {
    const { bucket } = this.#placeOf(leaf);
    const left = this.#options.locals.take(leaf);
    this.#used.add(leaf);
    bucket.gradient.add(leaf, gradient, left);
    left?.dispose();
  }

  /**
   * Notes that a parameter's gradient is final: its bucket may be sent, and so may others that have
   * waited for it.
   */
  final(leaf: Tensor): void {
    this.arrived.push(this.#placeOf(leaf).index);
    this.#finish(leaf);
  }

  /** A byte for each active parameter: 1 where this rank has something to add. */
  usedHere(): Uint8Array {
    const used = new Uint8Array(this.plan.active.length);
    this.plan.active.forEach(({ tensor }, index) => {
      if (this.#used.has(tensor)) {
        used[index] = 1;
      }
    });
    return used;
  }

  /** Sends whatever has waited, because backward is through. */
  flush(): void {
    this.#leave();
    const left = this.plan.buckets.slice(this.#sums.length);
    if (left.length === 0) {
      return;
    }
    const paths = left.flatMap(({ parameters }) => parameters.map(({ path }) => path));
    throw new DdpStateError(
      `ddp backward: expected all gradients of ${this.plan.buckets.length} buckets, got none for some of ${paths.join(', ')}. Was requiresGrad changed between forward and backward?`,
    );
  }

  /**
   * Waits for the buckets in order and deals their gradients out.
   * @returns the buffers that retained gradients are views of
   */
  async receive(outcome: CycleOutcome): Promise<(Tensor | undefined)[]> {
    const { postdivide, isUsed } = outcome;
    const buffers: (Tensor | undefined)[] = [];
    for (const bucket of this.plan.buckets) {
      const sum = await this.#sums[bucket.index];
      const { members } = bucket.layout;
      buffers.push(bucket.receive(sum, { postdivide, isUsed: (i) => isUsed(members[i]!) }));
      if (sum !== undefined && this.#options.groups === undefined) {
        this.#options.hostBuffers.give(sum);
      }
    }
    return buffers;
  }

  /** Waits until all buckets have been added to the sums of groups that are held. */
  async hold(): Promise<void> {
    await Promise.all(this.#sums);
    for (const bucket of this.plan.buckets) {
      bucket.reset();
    }
  }

  /** Frees everything after a failure; errors of what is still in flight are ignored. */
  reset(): void {
    for (const sum of this.#sums) {
      sum?.catch(() => undefined);
    }
    for (const bucket of this.plan.buckets) {
      bucket.reset();
    }
  }

  #placeOf(leaf: Tensor) {
    const place = this.plan.placeOf(leaf);
    if (place !== undefined) {
      return place;
    }
    throw new DdpStateError(
      `ddp backward: expected gradients of the parameters that were trained when it began, got one for '${leaf.name}' [${leaf.shape.join(', ')}]. A parameter is thawed before the forward that uses it, not between.`,
    );
  }

  #finish(leaf: Tensor): void {
    const place = this.plan.placeOf(leaf);
    if (place === undefined) {
      return; // unused in a static graph
    }
    this.#takeLocal(leaf);
    place.bucket.noteReady();
    if (!this.#wrapper.options.isDelayed) {
      this.#leave();
    }
  }

  /** Adds what earlier backwards have left on this rank, where the present one has nothing. */
  #takeLocal(leaf: Tensor): void {
    const local = this.#options.locals.take(leaf);
    if (local === undefined) {
      return;
    }
    this.#used.add(leaf);
    this.plan.placeOf(leaf)!.bucket.gradient.add(leaf, local);
    local.dispose();
  }

  /** Sends the buckets that are ready, in order. */
  #leave(): void {
    for (;;) {
      const next = this.plan.buckets[this.#sums.length];
      if (next?.isReady !== true) {
        return;
      }
      this.#sums.push(this.#start(next));
    }
  }

  #start(bucket: Bucket): Promise<Uint8Array> | undefined {
    const { communicationHook: hook = allReduceHook } = this.#wrapper.options;
    const { hostBuffers, clock, groups } = this.#options;
    const lanes = this.#wrapper.lanes.all;
    if (lanes.length === 0 && groups === undefined) {
      return this.#send(bucket, undefined) as undefined;
    }
    const read = this.#send(bucket, hostBuffers.take(bucket.wireBytes))!;
    let sum = groups === undefined ? read : this.#addToGroups(bucket, read);
    if (lanes.length > 0 && groups?.call.isLast !== false) {
      const lane = lanes[bucket.index % lanes.length]!;
      sum = lane.starts.enqueue(
        Promise.all([sum.then(clock.noteRead), this.agreed]),
        async ([bytes]) => {
          const end = clock.beginCommunication();
          await (groups === undefined
            ? this.#reduce(bucket, lane, bytes)
            : this.#reduceGroups(bucket, lane, groups.sums));
          end();
          return bytes;
        },
        {
          isSerial: hook.isSerial,
          failed: (error) => tellOthers(lane, 'ddp backward', error),
        },
      );
    }
    sum.catch((error: unknown) => {
      this.#failure ??= { error };
    });
    return sum;
  }

  /** What ranks compare of a bucket's collectives, and its name in traces. */
  #namesOf({ index }: Bucket): { readonly tag: string; readonly identity: string } {
    const { name } = this.#wrapper.options;
    const tag = `${name === '' ? '' : `${name} `}bucket ${index}`;
    return { tag, identity: `${this.identity} bucket ${index}` };
  }

  async #reduce(bucket: Bucket, group: ProcessGroup, bytes: Uint8Array): Promise<void> {
    const { communicationHook: hook = allReduceHook } = this.#wrapper.options;
    await hook.reduce({
      index: bucket.index,
      isLast: bucket.index === this.plan.buckets.length - 1,
      ...this.#namesOf(bucket),
      dtype: bucket.reduceDType,
      bytes,
      members: bucket.members,
      layout: bucket.layout,
      group,
      owner: this.#wrapper,
    });
  }

  /**
   * Adds what this call's group has brought. Resolves with the place of the sum of all groups,
   * which on a single rank is there after the last one.
   */
  async #addToGroups(bucket: Bucket, read: Promise<Uint8Array>): Promise<Uint8Array> {
    const { hostBuffers } = this.#options;
    const { sums, call } = this.#options.groups!;
    const bytes = await read;
    await sums.push(bucket, call, { byteLength: bytes.byteLength, parts: [bytes] });
    hostBuffers.give(bytes);
    return sums.heldOf(bucket)?.place ?? bytes; // there is none after a failure
  }

  async #reduceGroups(bucket: Bucket, group: ProcessGroup, sums: GroupSums<Bucket>): Promise<void> {
    const { sums: own, place } = sums.heldOf(bucket)!;
    const { tree } = sums;
    const names = this.#namesOf(bucket);
    await group.allReduce(own, place, { dtype: 'f32', op: 'sum', tree, ...names });
  }

  #send(bucket: Bucket, into: Uint8Array | undefined): Promise<Uint8Array> | undefined {
    const name = `ddp: bucket ${bucket.index} leaves`;
    // The range ends when the read-back is queued, and does not wait for it.
    return profiled(this.#wrapper, name, () => ({ read: bucket.send(into) })).read;
  }
}

/** Runs a part of the wrapper's work, as a range of the device's trace where `prof` is set. */
export function profiled<T>({ device, options }: WrapperContext, name: string, body: () => T): T {
  const { trace } = device;
  return options.isProfiling && trace !== undefined ? trace.range(name, body) : body();
}
