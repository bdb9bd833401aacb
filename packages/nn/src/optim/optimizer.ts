// What all optimizers share: parameter groups, the plan of flats, state that is made when it is
// first needed, and state dicts by parameter name. A step encodes one kernel for each flat. It
// waits only for flats that rest off the device, and for flats that a save has yet to read.

import { type Device, isTensor, type Tensor } from '@shardweave/tensor-core';
import { checkOptions, type OptionRules, optional, whole } from '../check-options.js';
import { clearGradients } from '../flat/clear-gradients.js';
import { type FlatPlan, planFlats } from '../flat/layout/flat-plan.js';
import type { FlatState, FlatStateBytes, StateRun } from '../flat/layout/flat-state.js';
import type { PinnedBytes } from '../flat/stores/byte-store.js';
import { flatHomeOf, occupyHomes, requireNoBackward } from '../flat/stores/flat-home.js';
import { FlatStates } from './flat-states.js';
import { type FlatStep, FlatStepper } from './flat-step.js';
import { matchGroups, type SavedGroup } from './match-groups.js';
import {
  checkStates,
  joinMembers,
  memberState,
  namesOf,
  type OptimizerStateDict,
} from './optimizer-state.js';
import { groupsOf, type OptimizerGroup, type ParamGroup } from './param-groups.js';
import { ResidentSteps } from './resident-steps.js';
import { StoredSteps } from './stored-steps.js';

/** Options of an optimizer's step. */
export interface StepOptions {
  /** f32 [1] on the device: gradients are multiplied by it (clipping, loss scaling). */
  readonly gradScale?: Tensor | undefined;
  /**
   * How many of the flats that rest off the device (see FlatHome) may be on their way to it while
   * another one is stepped, and how many on their way back. It bounds the host's buffers. Default
   * 1.
   */
  readonly flatsAhead?: number;
}

const STEP_RULES: OptionRules<StepOptions> = {
  gradScale: optional({ expected: 'a tensor, f32 [1]', holds: isTensor }),
  flatsAhead: optional(whole(0)),
};

/**
 * Base of the optimizers. Groups refer to parameters and not to their storages, so wrapping or
 * packing a module after its optimizer was made works too.
 */
export abstract class Optimizer<Options extends object> {
  readonly groups: readonly OptimizerGroup<Options>[];
  readonly #states: FlatStates;
  #plans: ReadonlyMap<Tensor, FlatPlan> = new Map();
  /** Each parameter's piece at the time when the plans were made; another one makes them stale. */
  #planned: readonly unknown[] | undefined;
  readonly #resident: ResidentSteps<Options>;
  readonly #stored: StoredSteps<Options>;

  constructor(params: readonly Tensor[] | readonly ParamGroup<Options>[], defaults: Options) {
    this.groups = groupsOf(params, defaults);
    this.#checkGroups(this.groups);
    planFlats(this.groups); // so that a wrong group throws here and not at the first step
    this.#states = new FlatStates({
      owner: this,
      kind: () => this.kind,
      planOf: (flat) => this.#plan().get(flat),
      namesFor: ({ members }) => [
        ...new Set(members.flatMap(({ group }) => this.stateNamesOf(this.groups[group]!))),
      ],
    });
    const stepper = new FlatStepper<Options>(this.#states, {
      kind: () => this.kind,
      namesOf: (group) => this.stateNamesOf(group),
      encode: (device, step) => this.stepFlat(device, step),
    });
    this.#resident = new ResidentSteps(stepper);
    this.#stored = new StoredSteps(stepper);
  }

  /**
   * Refuses options that cannot work: those of a new group, of a loaded one, or of one that a
   * schedule has changed.
   * @param _at ' group 1' for messages; '' where there is only one group
   */
  protected checkGroup(_group: OptimizerGroup<Options>, _at: string): void {}

  #checkGroups(groups: readonly OptimizerGroup<Options>[]): void {
    groups.forEach((group, i) => {
      this.checkGroup(group, groups.length === 1 ? '' : ` group ${i}`);
    });
  }

  /** The optimizer's name, such as 'AdamW', under which a store keeps its state. */
  abstract readonly kind: string;

  /** Names of the state tensors that a group's parameters need with its present options. */
  abstract stateNamesOf(group: OptimizerGroup<Options>): readonly string[];

  /**
   * Encodes the step of a flat or of a part of it. Parts are cut anywhere, so the new value of an
   * element must not depend on other elements.
   */
  protected abstract stepFlat(device: Device, step: FlatStep<Options>): void;

  /** All parameters, group by group. */
  parameters(): Tensor[] {
    return this.groups.flatMap((group) => group.params);
  }

  /**
   * Steps every parameter that has a gradient. The others keep their values, their state and their
   * count of steps, also where they share a flat (sharded or packed) with parameters that are
   * stepped.
   *
   * Flats on the device are encoded when the call returns, except those that a save
   * (captureCheckpoint) has yet to read. They are stepped when it has, by the gradients, the scale
   * and the options of the call, so zeroGrad may follow at once. The promise waits for such a save,
   * for the flats that rest off the device, which are stepped one after the other, and for their
   * commit. Where it rejects because a store failed, nothing of the step is committed. Calling
   * `step` again finishes it with the options that it began with, and so does whatever reads those
   * flats next.
   * @throws {OptimizerError} where a backward has not ended, or a flat that rests off the device is
   * in a forward or step that has not; nothing is stepped then. Also where a backward adds to a
   * gradient that waits for a save
   */
  async step(options: StepOptions = {}): Promise<void> {
    checkOptions('optimizer.step', options, STEP_RULES);
    this.#checkGroups(this.groups);
    const plans = [...this.#plan().values()];
    const leave = occupy(plans, 'optimizer.step');
    const step = this.#stored.finish() ?? this.#stepPlans(plans, options);
    return step.then(() => this.#stored.forget()).finally(leave);
  }

  async #stepPlans(plans: readonly FlatPlan[], options: StepOptions): Promise<void> {
    const stored = plans.filter(({ flat }) => flatHomeOf(flat)?.hasGradient);
    if (this.#stored.isRepeated(stored)) {
      return;
    }
    for (const { flat } of stored) {
      this.#states.restingOf(flat); // throws for another optimizer's state, before any step
    }
    const { groups } = this;
    const { gradScale: scale, flatsAhead = 1 } = options;
    const turns = this.#resident.turnsOf(plans);
    // Both begin with what there is at the call; only then may the call wait.
    const call = { groups, scale, flatsAhead };
    const step = stored.length === 0 ? undefined : this.#stored.begin(stored, call);
    await this.#resident.step(turns, groups, scale);
    await step?.finish();
  }

  /** Frees all gradients. */
  zeroGrad(): void {
    clearGradients(this.parameters());
  }

  /**
   * The state of a flat or of a plain parameter, undefined before its first step. It is the live
   * object and no copy; sharding uses it. It has followed parameters that came to lie elsewhere.
   */
  stateOf(flat: Tensor): FlatState | undefined {
    this.#plan();
    return this.#states.get(flat);
  }

  /**
   * Which elements of a flat have state, and how many steps they have seen, wherever the state
   * rests; empty before the first step. Saves use it.
   */
  async flatStateRuns(flat: Tensor): Promise<readonly StateRun[]> {
    return this.#states.runs(flat);
  }

  /**
   * The bytes of a flat's state, wherever it rests; undefined before its first step. Sharding uses
   * it.
   */
  async readFlatState(flat: Tensor): Promise<FlatStateBytes | undefined> {
    return this.#states.read(flat);
  }

  /**
   * Pins the state of a flat that rests in a store: the bytes by name, which stay as they are at
   * this moment while steps go on, or undefined for a tensor that the store cannot pin. Saves use
   * it.
   */
  async pinFlatState(flat: Tensor): Promise<ReadonlyMap<string, PinnedBytes | undefined>> {
    return this.#states.pin(flat);
  }

  /**
   * Replaces the state of a flat. A parameter that no run covers counts as never stepped, and a
   * missing tensor as zeros. The arrays are the caller's again when the promise resolves. Sharding
   * uses it.
   */
  async writeFlatState(flat: Tensor, state: FlatStateBytes): Promise<void> {
    await this.#states.write(flat, state);
  }

  /**
   * The groups as they will be with saved options, which go by the names of parameters. Nothing
   * changes. Sharding and saves use it.
   * @param call the operation in errors, and whether a group that only one side has is an error
   * (`strict`, default true)
   * @throws {StateDictError} naming a parameter that was in another group
   * @throws {NnConfigError} for options that cannot work
   */
  groupsFrom(
    saved: readonly SavedGroup[],
    names: ReadonlyMap<Tensor, string>,
    call: { readonly operation: string; readonly strict?: boolean },
  ): readonly OptimizerGroup<Options>[] {
    const { operation, strict = true } = call;
    const own = this.groups.map(({ params }) => params.map((param) => names.get(param)!));
    const matched = matchGroups(saved, own, { operation, strict });
    const groups = this.groups.map((group, i) => {
      return { ...group, ...matched[i], params: group.params };
    });
    this.#checkGroups(groups);
    return groups;
  }

  /** Takes over the options of `groupsFrom`. */
  takeOptions(groups: readonly OptimizerGroup<Options>[]): void {
    for (const [i, group] of groups.entries()) {
      Object.assign(this.groups[i]!, group);
    }
  }

  /**
   * The options and the state by parameter name, copied to the host; waits for the device.
   * @param named usually module.namedParameters()
   * @throws {OptimizerError} where a parameter is unnamed or lies here only in part (sharded)
   */
  async stateDict(
    named: Iterable<readonly [string, Tensor]>,
  ): Promise<OptimizerStateDict<Options>> {
    const names = namesOf(this.parameters(), named);
    const plans = [...this.#plan().values()];
    const leave = occupy(plans, 'optimizer.stateDict');
    const states = plans.map(async ({ flat, members }) => {
      const state = await this.readFlatState(flat);
      return members.flatMap((member) => {
        const own = state && memberState(member, state);
        return own === undefined ? [] : [[names.get(member.param)!, own] as const];
      });
    });
    const found = await Promise.all(states).finally(leave);
    const paramGroups = this.groups.map(({ params, ...options }) => ({
      ...(options as unknown as Options),
      params: params.map((param) => names.get(param)!),
    }));
    return { state: new Map(found.flat()), paramGroups };
  }

  /**
   * Takes over the options and the state of `dict`. Each group gets the options of the group that
   * its parameters were in, whatever the order of groups is. Nothing changes where they do not fit.
   * @throws {OptimizerError} where a flat that rests off the device is in a forward, backward or
   * step that has not ended
   * @throws {StateDictError} where names or shapes do not fit, and naming a parameter that was in
   * another group
   */
  async loadStateDict(
    dict: OptimizerStateDict<Options>,
    named: Iterable<readonly [string, Tensor]>,
  ): Promise<void> {
    const names = namesOf(this.parameters(), named);
    const plans = [...this.#plan().values()];
    checkStates('optimizer.loadStateDict', dict.state, names);
    const loaded = this.groupsFrom(dict.paramGroups, names, {
      operation: 'optimizer.loadStateDict',
    });
    const leave = occupy(plans, 'optimizer.loadStateDict');
    try {
      for (const flat of flatsIn(plans)) {
        await this.#states.ready(flat); // may reject, which it must before anything changes
      }
      this.takeOptions(loaded);
      for (const { flat, members } of plans) {
        this.#states.drop(flat);
        const entries = members.map(({ param, start, length }) => {
          return { start, length, first: 0, entry: dict.state.get(names.get(param)!) };
        });
        const state = joinMembers(entries, flat.size);
        if (state.runs.length > 0 || this.#states.restingOf(flat)?.runs !== undefined) {
          await this.writeFlatState(flat, state);
        }
      }
    } finally {
      leave();
    }
  }

  /** Frees the state; the next step starts afresh. */
  dispose(): void {
    this.#states.dispose();
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  /** The plans by flat, made anew where parameters were wrapped or packed after the last one. */
  #plan(): ReadonlyMap<Tensor, FlatPlan> {
    const params = this.parameters();
    if (this.#planned?.every((piece, i) => params[i]!.piece === piece)) {
      return this.#plans;
    }
    const [before, planned] = [this.#plans, this.#planned];
    const plans = planFlats(this.groups);
    this.#plans = new Map(plans.map((plan) => [plan.flat, plan]));
    this.#planned = params.map(({ piece }) => piece);
    try {
      this.#states.move([...before.values()], plans);
    } catch (error) {
      [this.#plans, this.#planned] = [before, planned]; // so that the next call throws again
      throw error;
    }
    return this.#plans;
  }
}

/** Takes the homes of all flats for a call, which comes after the end of any backward. */
function occupy(plans: readonly FlatPlan[], call: string): () => void {
  const flats = flatsIn(plans);
  requireNoBackward(flats, call);
  return occupyHomes(flats, call);
}

function flatsIn(plans: readonly FlatPlan[]): Tensor[] {
  return plans.map(({ flat }) => flat);
}
