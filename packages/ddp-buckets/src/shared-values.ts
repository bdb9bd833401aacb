// The parameters and buffers of a wrapped module, which all ranks have alike: rank 0's, from the
// first call on, and those of any rank where a program asks for them.

import type { ProcessGroup } from '@shardweave/collectives';
import { markCopies, masterOf } from '@shardweave/nn/flat';
import type { Tensor } from '@shardweave/tensor-core';
import { describeParameter, type PlanKeeper } from './buckets/plan-keeper.js';
import type { ActiveParameter, WrapperContext } from './buckets/wrapped-parameters.js';
import { describeOptions, type ResolvedDdpOptions } from './options.js';
import { requireAgreement } from './ranks/agreement.js';
import { type BroadcastOptions, broadcastTensors } from './ranks/broadcast-tensors.js';

/** Added layers are new on each rank, so their values are sent in any case. */
const SENT = { isSyncedAtFirst: true };

export class SharedValues {
  readonly #wrapper: WrapperContext;
  readonly #keeper: PlanKeeper;
  /** The parameters and buffers that have been made equal on all ranks. */
  readonly #shared = new WeakSet<Tensor>();
  #opening: Promise<void> | undefined;
  #numericClasses: readonly string[] = [];

  constructor(wrapper: WrapperContext, keeper: PlanKeeper) {
    this.#wrapper = wrapper;
    this.#keeper = keeper;
  }

  /** The numeric classes of all ranks, each once, sorted; empty before `initialize`. */
  get numericClasses(): readonly string[] {
    return this.#numericClasses;
  }

  /** All parameters and buffers with their paths. */
  get all(): ActiveParameter[] {
    const { module } = this.#wrapper.parameters;
    const named = [...module.namedParameters(), ...module.namedBuffers()];
    return named.map(([path, tensor]) => ({ path, tensor }));
  }

  /** Those that the module has got since they were last shared. */
  get added(): ActiveParameter[] {
    return this.all.filter(({ tensor }) => !this.#shared.has(tensor));
  }

  /** Checks that ranks wrap alike, and sends rank 0's values to all. Collective, once. */
  initialize(): Promise<void> {
    this.#opening ??= this.#wrapper.lanes.inOpening(() => this.#open());
    return this.#opening;
  }

  async #open(): Promise<void> {
    const { device, options, lanes, parameters } = this.#wrapper;
    const { group } = lanes;
    if (group.worldSize > 1) {
      const paths = new Map(
        parameters.module.namedParameters().map(([path, tensor]) => [tensor, path]),
      );
      const lines = describeOptions(options, (parameter) => paths.get(parameter)!);
      const advice = 'Wrap with the same options on all ranks.';
      const beside = await device.numericClass();
      const compared = { what: 'options', advice, beside } as const;
      this.#numericClasses = await requireAgreement(group, lines, compared);
    }
    await this.#share(group, this.all, 'parameters and buffers', options);
    await this.#keeper.open();
    await lanes.open();
  }

  /** Sends rank 0's values of layers that were added, or that replaced others. Collective. */
  async share(added: readonly ActiveParameter[]): Promise<void> {
    const { lanes } = this.#wrapper;
    const what = 'added parameters and buffers';
    if (lanes.group.worldSize === 1) {
      return this.#share(lanes.group, added, what);
    }
    await lanes.inTurn((group) => this.#share(group, added, what));
  }

  /**
   * Checks that tensors are equal over ranks in path, dtype and shape, and makes their values
   * equal, unless they are.
   */
  async #share(
    group: ProcessGroup,
    tensors: readonly ActiveParameter[],
    what: string,
    { isSyncedAtFirst: isSent }: Pick<ResolvedDdpOptions, 'isSyncedAtFirst'> = SENT,
  ): Promise<void> {
    if (group.worldSize > 1) {
      const advice = 'Build, wrap and freeze the model alike on all ranks.';
      await requireAgreement(group, tensors.map(describeParameter), { what, advice });
      const list = isSent ? tensors.map(({ tensor }) => tensor) : [];
      await broadcastMasters(group, list, { root: 0, tag: `ddp ${what}` });
    }
    for (const { tensor } of tensors) {
      this.#shared.add(tensor);
    }
  }

  /** Sends the values of rank `root` to all ranks. Collective. */
  async broadcast(tensors: readonly Tensor[], options: BroadcastOptions): Promise<void> {
    const { lanes } = this.#wrapper;
    if (lanes.group.worldSize > 1) {
      await lanes.inTurn((group) => broadcastMasters(group, tensors, options));
    }
  }
}

/** Sends the values of parameters and buffers from where they rest, and tells their copies. */
async function broadcastMasters(
  group: ProcessGroup,
  tensors: readonly Tensor[],
  options: BroadcastOptions,
): Promise<void> {
  await broadcastTensors(group, tensors.map(masterOf), options);
  if (group.rank !== options.root) {
    markCopies(tensors, options.tag);
  }
}
