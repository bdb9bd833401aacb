// What all optimizers share: parameter groups, the plan of flats, state that is made when it is
// first needed, and state dicts by parameter name. A step encodes kernels, one a flat, and waits
// only for flats that rest elsewhere than on the device, and for those that a save has not read
// yet.

import { type Device, isTensor, type Tensor } from '@shardweave/tensor-core';
import { checkOptions, type OptionRules, optional, whole } from '../check-options.js';
import { clearGradients } from '../flat/clear-gradients.js';
import type { PinnedBytes } from '../flat/homes/byte-store.js';
import { type FlatHome, type FlatPart, flatHomeOf, occupyHomes } from '../flat/homes/flat-home.js';
import { hasGradient } from '../parameter-place.js';
import { type FlatPlan, planFlats } from './flat-plan.js';
import type { FlatState, FlatStateBytes, StateRun } from './flat-state.js';
import { FlatStates } from './flat-states.js';
import { type FlatStep, type PlannedStep, planStep, stepPart } from './flat-step.js';
import {
  checkStateDict,
  joinMembers,
  memberState,
  namesOf,
  type OptimizerStateDict,
} from './optimizer-state.js';
import { groupsOf, type OptimizerGroup, type ParamGroup } from './param-groups.js';
import { StoredStep } from './stored-step.js';

/** Options of an optimizer's step. */
export interface StepOptions {
  /** f32 [1] on the device: gradients are multiplied by it (clipping, loss scaling). */
  readonly gradScale?: Tensor | undefined;
  /**
   * Flats that rest off the device (FlatHome): how many come while another one is stepped, and how
   * many leave. Bounds the host's buffers. Default 1.
   */
  readonly flatsAhead?: number;
}

const STEP_RULES: OptionRules<StepOptions> = {
  gradScale: optional({ expected: 'a tensor, f32 [1]', holds: isTensor }),
  flatsAhead: optional(whole(0)),
};

/** Base of the optimizers. Groups hold on to parameters, not to their storages. */
export abstract class Optimizer<Options extends object> {
  readonly groups: readonly OptimizerGroup<Options>[];
  readonly #states: FlatStates;
  #plans: readonly FlatPlan[] = [];
  /** What the plans were made from: each parameter's piece. */
  #planned: readonly unknown[] | undefined;
  /** A step that failed half-way, over flats that rest off the device. */
  #unfinished: StoredStep | undefined;
  /**
   * Gradients that such a step used when somebody else finished it: repeating it does nothing more.
   */
  #finished: ReadonlyMap<FlatHome, number> | undefined;

  constructor(params: readonly Tensor[] | readonly ParamGroup<Options>[], defaults: Options) {
    this.groups = groupsOf(params, defaults);
    this.#checkGroups(this.groups);
    planFlats(this.groups); // a wrong group is found here, not at the first step
    this.#states = new FlatStates({
      owner: this,
      kind: () => this.kind,
      planOf: (flat) => this.#plan().find((plan) => plan.flat === flat),
      namesFor: ({ members }) => [
        ...new Set(members.flatMap(({ group }) => this.stateNamesOf(this.groups[group]!))),
      ],
    });
  }

  /**
   * Refuses options that cannot work, of a new group, a loaded one, or one that a schedule has
   * changed.
   * @param _at ' group 1' for messages, '' where there is but one
   */
  protected checkGroup(_group: OptimizerGroup<Options>, _at: string): void {}

  #checkGroups(groups: readonly OptimizerGroup<Options>[]): void {
    groups.forEach((group, i) => {
      this.checkGroup(group, groups.length === 1 ? '' : ` group ${i}`);
    });
  }

  /** What it is called where its state rests. */
  abstract readonly kind: string;

  /** Names of the state tensors that a group's parameters need with its present options. */
  abstract stateNamesOf(group: OptimizerGroup<Options>): readonly string[];

  /** Encodes a flat's step, or a part of it: element by element, as parts are cut anywhere. */
  protected abstract stepFlat(device: Device, step: FlatStep<Options>): void;

  /** All parameters, group by group. */
  parameters(): Tensor[] {
    return this.groups.flatMap((group) => group.params);
  }

  /**
   * Steps every parameter that has a gradient; the others stay as they are, with their state and
   * their count of steps, also where they share a flat (sharded or packed) with some that have one.
   * Flats on the device are encoded when it returns, unless a save has still to read them
   * (captureCheckpoint); the promise waits for that, for those that rest elsewhere, which come one
   * after the other, and for their commit. Where it rejects for a store that fails, none of the
   * step is committed, and repeating it finishes it with the options that it began with; so does
   * whatever reads those flats next.
   * @throws {OptimizerError} where those are in a forward, backward or step that has not ended;
   * nothing is stepped then
   */
  async step(options: StepOptions = {}): Promise<void> {
    checkOptions('optimizer.step', options, STEP_RULES);
    this.#checkGroups(this.groups);
    const plans = this.#plan();
    const leave = occupyHomes(flatsIn(plans), 'optimizer.step');
    const step = this.#unfinished?.finish() ?? this.#stepPlans(plans, options);
    const taken = step.then(() => {
      this.#finished = undefined; // by this call, not by somebody else
    });
    return taken.finally(leave);
  }

  async #stepPlans(plans: readonly FlatPlan[], options: StepOptions): Promise<void> {
    const homes = plans.flatMap(({ flat }) => {
      const home = flatHomeOf(flat);
      return home?.hasGradient ? [home] : [];
    });
    if (this.#isRepeated(homes)) {
      return;
    }
    for (const { flat } of plans) {
      if (flatHomeOf(flat)?.hasGradient) {
        this.#states.restingOf(flat); // refuses another optimizer's state before anything is stepped
      }
    }
    for (const plan of plans) {
      if (flatHomeOf(plan.flat) === undefined && plan.flat.grad !== undefined) {
        for (const reader of plan.flat.storage.readers) {
          await reader.whenClosed();
        }
        this.#stepResident(plan, options);
      }
    }
    if (homes.length === 0) {
      return;
    }
    await this.#storedStep(plans, homes, options).finish();
  }

  #stepResident(plan: FlatPlan, options: StepOptions): void {
    const { flat } = plan;
    const { groups } = this;
    const moving = movingOf(plan);
    if (moving.size > 0) {
      const step = this.#plannedStep(plan, { groups, moving });
      const part = { start: 0, length: flat.size, param: undefined, grad: flat.grad! };
      this.#encode(step, { ...part, state: new Map() }, options.gradScale?.view());
      step.state.advance(step.progress);
    }
    // Copies gathered or published from it are stale: on all ranks alike, also where a rank's
    // part is all padding.
    flat.storage.markWritten();
  }

  #plannedStep(
    plan: FlatPlan,
    {
      groups,
      moving,
    }: {
      readonly groups: readonly OptimizerGroup<Options>[];
      readonly moving: ReadonlySet<Tensor>;
    },
  ): PlannedStep<Options> {
    return planStep(plan, {
      state: this.#states.ensure(plan.flat),
      groups,
      moving,
      namesOf: (group) => this.stateNamesOf(group),
    });
  }

  #encode(
    step: PlannedStep<Options>,
    part: FlatPart,
    gradScale: ReturnType<Tensor['view']> | undefined,
  ): void {
    const { device } = step.plan.flat;
    stepPart(step, part, gradScale, (call) => this.stepFlat(device, call));
  }

  /**
   * The same of flats that rest elsewhere; it keeps what it was called with, as it may fail
   * half-way.
   */
  #storedStep(
    plans: readonly FlatPlan[],
    homes: readonly FlatHome[],
    options: StepOptions,
  ): StoredStep {
    const groups = this.groups.map((group) => ({ ...group }));
    const scale = options.gradScale;
    scale?.storage.retain();
    const versions = new Map(homes.map((home) => [home, home.gradientVersion]));
    const turns = plans.flatMap((plan) => {
      const home = flatHomeOf(plan.flat);
      if (!home?.hasGradient) {
        return [];
      }
      plan.flat.storage.markWritten(); // copies are stale on all ranks alike
      const moving = movingOf(plan);
      return moving.size > 0 ? [this.#turnOf(plan, home, { groups, moving, scale })] : [];
    });
    const step = new StoredStep(homes, turns, {
      flatsAhead: options.flatsAhead ?? 1,
      ended: (isWhole) => {
        scale?.storage.release();
        this.#unfinished = undefined;
        this.#finished = isWhole ? versions : undefined;
      },
    });
    this.#unfinished = step;
    return step;
  }

  #turnOf(
    plan: FlatPlan,
    home: FlatHome,
    call: {
      readonly groups: readonly OptimizerGroup<Options>[];
      readonly moving: ReadonlySet<Tensor>;
      readonly scale: Tensor | undefined;
    },
  ) {
    const { scale } = call;
    let step: PlannedStep<Options> | undefined;
    const start = () => {
      step = this.#plannedStep(plan, call);
      const { state, progress } = step;
      const names = [...state.tensors.keys()];
      return home.start(this.#states.restingOf(plan.flat), {
        names,
        runs: state.runsAfter(progress),
      });
    };
    const use = (part: FlatPart) => this.#encode(step!, part, scale?.storage.view(scale.offset, 1));
    const kept = () => {
      plan.flat.storage.markWritten(); // once more, as they may be made until then
      step!.state.advance(step!.progress);
    };
    return { start, use, kept };
  }

  /**
   * Whether a step was finished by somebody else, and its caller repeats it with the same
   * gradients.
   */
  #isRepeated(homes: readonly FlatHome[]): boolean {
    const finished = this.#finished;
    this.#finished = undefined;
    return (
      finished !== undefined &&
      homes.length === finished.size &&
      homes.every((home) => finished.get(home) === home.gradientVersion)
    );
  }

  /** Frees all gradients. */
  zeroGrad(): void {
    clearGradients(this.parameters());
  }

  /** The state of a flat (or plain parameter), if it has been stepped; live, for sharding. */
  stateOf(flat: Tensor): FlatState | undefined {
    return this.#states.get(flat);
  }

  /**
   * What there is of a flat's state, wherever it rests; nothing before its first step. For saves.
   */
  async flatStateRuns(flat: Tensor): Promise<readonly StateRun[]> {
    return this.#states.runs(flat);
  }

  /** The state of a flat, wherever it rests; undefined before its first step. For sharding. */
  async readFlatState(flat: Tensor): Promise<FlatStateBytes | undefined> {
    return this.#states.read(flat);
  }

  /**
   * Keeps the state of a flat that rests in a store as it is now, by name; undefined for what can't
   * be kept. For saves.
   */
  async pinFlatState(flat: Tensor): Promise<ReadonlyMap<string, PinnedBytes | undefined>> {
    return this.#states.pin(flat);
  }

  /**
   * Replaces the state of a flat: a parameter in no run is as if it was never stepped, and a tensor
   * that is missing is zeros. The arrays are the caller's again when it resolves. For sharding.
   */
  async writeFlatState(flat: Tensor, state: FlatStateBytes): Promise<void> {
    await this.#states.write(flat, state);
  }

  /**
   * Options and state by parameter name; waits for the device.
   * @param named usually module.namedParameters()
   * @throws {OptimizerError} where a parameter is unnamed or lies here only in part (sharded)
   */
  async stateDict(
    named: Iterable<readonly [string, Tensor]>,
  ): Promise<OptimizerStateDict<Options>> {
    const names = namesOf(this.parameters(), named);
    const plans = this.#plan();
    const leave = occupyHomes(flatsIn(plans), 'optimizer.stateDict');
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
   * Takes over options and state; nothing changes when they don't fit.
   * @throws {OptimizerError} beside a forward, backward or step of flats that rest off the device
   * @throws {StateDictError} where names, shapes or groups do not fit
   */
  async loadStateDict(
    dict: OptimizerStateDict<Options>,
    named: Iterable<readonly [string, Tensor]>,
  ): Promise<void> {
    const names = namesOf(this.parameters(), named);
    const plans = this.#plan();
    checkStateDict(dict, { names, numGroups: this.groups.length });
    const loaded = this.groups.map((group, i) => {
      return { ...group, ...dict.paramGroups[i], params: group.params };
    });
    this.#checkGroups(loaded);
    const leave = occupyHomes(flatsIn(plans), 'optimizer.loadStateDict');
    await this.#takeOver(dict, loaded, { names, plans }).finally(leave);
  }

  async #takeOver(
    dict: OptimizerStateDict<Options>,
    groups: readonly OptimizerGroup<Options>[],
    {
      names,
      plans,
    }: { readonly names: ReadonlyMap<Tensor, string>; readonly plans: readonly FlatPlan[] },
  ): Promise<void> {
    for (const flat of flatsIn(plans)) {
      await this.#states.ready(flat); // before anything changes
    }
    for (const [i, group] of groups.entries()) {
      Object.assign(this.groups[i]!, group);
    }
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
  }

  /** Frees the state; the next step starts afresh. */
  dispose(): void {
    this.#states.dispose();
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  /** The plan, made anew where parameters have been wrapped or packed since. */
  #plan(): readonly FlatPlan[] {
    const params = this.parameters();
    if (this.#planned?.every((piece, i) => params[i]!.piece === piece)) {
      return this.#plans;
    }
    const [before, planned] = [this.#plans, this.#planned];
    this.#plans = planFlats(this.groups);
    this.#planned = params.map(({ piece }) => piece);
    try {
      this.#states.move(before, this.#plans);
    } catch (error) {
      [this.#plans, this.#planned] = [before, planned]; // refused again next time
      throw error;
    }
    return this.#plans;
  }
}

function flatsIn(plans: readonly FlatPlan[]): Tensor[] {
  return plans.map(({ flat }) => flat);
}

/** The parameters that have elements here, and a gradient. */
function movingOf({ members }: FlatPlan): Set<Tensor> {
  const moving = members.filter(({ param, length }) => length > 0 && hasGradient(param));
  return new Set(moving.map(({ param }) => param));
}
