// What all optimizers share: parameter groups, the plan of flats, state that is made when it is first
// needed, and state dicts by parameter name. A step encodes kernels, one a flat, and waits only for
// flats that rest elsewhere than on the device.

import { type Device, isTensor, Tensor } from '@shardweave/tensor-core';
import {
  checkOptions,
  type OptionRule,
  type OptionRules,
  optional,
  shown,
  whole,
} from '../check-options.js';
import { NnConfigError, OptimizerError } from '../errors.js';
import { clearGradients } from '../flat/clear-gradients.js';
import { isSharded } from '../parameter-place.js';
import { type FlatHome, type FlatPart, flatHomeOf, occupyHomes } from '../residence/flat-home.js';
import type { RestingState, StateSignature } from '../residence/resting-state.js';
import { type FlatMember, type FlatPlan, planFlats } from './flat-plan.js';
import { type FlatStep, stepPart } from './flat-step.js';
import {
  checkStateDict,
  copyState,
  type FlatState,
  type FlatStateBytes,
  memberState,
  type OptimizerStateDict,
  type StateHeader,
} from './optimizer-state.js';
import { StoredStep } from './stored-step.js';

/** Parameters that share options; options left out are the optimizer's defaults. */
export type ParamGroup<Options> = { readonly params: readonly Tensor[] } & Partial<Options>;

/** A group as the optimizer keeps it. Its options may be changed between steps (schedules). */
export type OptimizerGroup<Options> = { readonly params: readonly Tensor[] } & {
  -readonly [Name in keyof Options]: Options[Name];
};

export interface StepOptions {
  /** f32 [1] on the device: gradients are multiplied by it (clipping, loss scaling). */
  readonly gradScale?: Tensor | undefined;
  /**
   * Flats that rest off the device (FlatHome): how many come while another one is stepped, and how
   * many leave. Bounds the host's buffers. Default 1.
   */
  readonly flatsAhead?: number;
}

/** What a group's `params` may be. */
export const PARAMETERS: OptionRule = {
  expected: 'an array of tensors',
  holds: (value) => Array.isArray(value) && value.every(isTensor),
};

const STEP_RULES: OptionRules<StepOptions> = {
  gradScale: optional({ expected: 'a tensor, f32 [1]', holds: isTensor }),
  flatsAhead: optional(whole(0)),
};

/** Base of the optimizers. Groups hold on to parameters, not to their storages. */
export abstract class Optimizer<Options extends object> {
  readonly groups: readonly OptimizerGroup<Options>[];
  readonly #states = new Map<Tensor, FlatState>();
  #plans: readonly FlatPlan[] = [];
  /** What the plans were made from: each parameter's piece, and whether it is trained. */
  #planned: readonly (readonly [piece: unknown, requiresGrad: boolean])[] | undefined;
  /** A step that failed half-way, over flats that rest off the device. */
  #unfinished: StoredStep | undefined;
  /** Gradients that such a step used when somebody else finished it: repeating it does nothing more. */
  #finished: ReadonlyMap<FlatHome, number> | undefined;

  constructor(params: readonly Tensor[] | readonly ParamGroup<Options>[], defaults: Options) {
    const isPlain = PARAMETERS.holds(params);
    if (!isPlain) {
      requireGroups(params);
    }
    const groups = (isPlain ? [{ params }] : params) as readonly ParamGroup<Options>[];
    this.groups = groups.map((group) => {
      const given = Object.entries(group).filter(([, value]) => value !== undefined);
      return { ...defaults, ...Object.fromEntries(given) } as unknown as OptimizerGroup<Options>;
    });
    this.#checkGroups(this.groups);
    planFlats(this.groups); // a wrong group is found here, not at the first step
  }

  /**
   * Refuses options that cannot work, of a new group, a loaded one, or one that a schedule has changed.
   * @param at ' group 1' for messages, '' where there is but one
   */
  protected checkGroup(_group: OptimizerGroup<Options>, _at: string): void {}

  #checkGroups(groups: readonly OptimizerGroup<Options>[]): void {
    groups.forEach((group, i) => {
      this.checkGroup(group, groups.length === 1 ? '' : ` group ${i}`);
    });
  }

  /** What it is called where its state rests. */
  abstract readonly kind: string;

  /** Names of the state tensors that a flat needs with the groups' present options. */
  abstract stateNames(): readonly string[];

  /** Encodes a flat's step, or a part of it: element by element, as parts are cut anywhere. */
  protected abstract stepFlat(device: Device, step: FlatStep<Options>): void;

  /** All parameters, group by group. */
  parameters(): Tensor[] {
    return this.groups.flatMap((group) => group.params);
  }

  /**
   * Steps every flat that has a gradient. Where parameters share a flat (sharded or packed), those
   * without a gradient of their own count as having zeros, so decay and momentum move them, but frozen
   * ones stay. Flats on the device are encoded when it returns; the promise waits for those that rest
   * elsewhere, which come one after the other, and for their commit. Where it rejects for a store that
   * fails, none of the step is committed, and repeating it finishes it with the options that it began
   * with; so does whatever reads those flats next.
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
        this.#restingOf(flat); // refuses another optimizer's state before anything is stepped
      }
    }
    for (const plan of plans) {
      if (flatHomeOf(plan.flat) === undefined && plan.flat.grad !== undefined) {
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
    if (plan.segments.length > 0) {
      const state = this.#stateFor(flat);
      const { groups } = this;
      const gradScale = options.gradScale?.view();
      const grad = flat.grad!;
      state.step += 1;
      const part = { start: 0, length: flat.size, param: undefined, grad, state: new Map() };
      stepPart(plan, part, { groups, gradScale, state, step: state.step }, (step) =>
        this.stepFlat(flat.device, step),
      );
      state.unused.clear();
    }
    // Copies gathered or published from it are stale: on all ranks alike, also where a rank's
    // part is all padding.
    flat.storage.markWritten();
  }

  /** The same of flats that rest elsewhere; it keeps what it was called with, as it may fail half-way. */
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
      return plan.segments.length > 0 ? [this.#turnOf(plan, home, { groups, scale })] : [];
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
    {
      groups,
      scale,
    }: {
      readonly groups: readonly OptimizerGroup<Options>[];
      readonly scale: Tensor | undefined;
    },
  ) {
    const start = () => {
      const state = this.#stateFor(plan.flat);
      return home.start(this.#restingOf(plan.flat), [...state.tensors.keys()]);
    };
    const use = (part: FlatPart) => {
      const state = this.#stateFor(plan.flat);
      const gradScale = scale?.storage.view(scale.offset, 1);
      stepPart(plan, part, { groups, gradScale, state, step: state.step + 1 }, (step) =>
        this.stepFlat(plan.flat.device, step),
      );
    };
    const kept = () => {
      plan.flat.storage.markWritten(); // once more, as they may be made until then
      const state = this.#stateFor(plan.flat);
      state.step += 1;
      state.unused.clear();
    };
    return { start, use, kept };
  }

  /** Whether a step was finished by somebody else, and its caller repeats it with the same gradients. */
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

  /** What there is of a flat's state, wherever it rests; undefined before its first step. For saves. */
  async flatStateHeader(flat: Tensor): Promise<StateHeader | undefined> {
    const home = stateHomeOf(flat);
    await home?.ready();
    await home?.steps.rest();
    if (this.stateOf(flat) === undefined && this.#restingOf(flat)?.step === undefined) {
      return undefined;
    }
    const { step, tensors, unused } = this.#stateFor(flat);
    return { step, names: [...tensors.keys()].filter((name) => !unused.has(name)) };
  }

  /** The state of a flat, wherever it rests; undefined before its first step. For sharding. */
  async readFlatState(flat: Tensor): Promise<FlatStateBytes | undefined> {
    if ((await this.flatStateHeader(flat)) === undefined) {
      return undefined;
    }
    const resting = this.#restingOf(flat);
    const { step, tensors } = this.#stateFor(flat);
    const reads = [...tensors].map(async ([name, { storage }]) => {
      return [name, await (resting?.read(name) ?? storage.read())] as const;
    });
    return { step, tensors: new Map(await Promise.all(reads)) };
  }

  /**
   * Replaces the state of a flat. A tensor that is missing begins anew, with zeros. The arrays are the
   * caller's again when it resolves. For sharding.
   */
  async writeFlatState(
    flat: Tensor,
    step: number,
    tensors: ReadonlyMap<string, Uint8Array>,
  ): Promise<void> {
    const home = stateHomeOf(flat);
    await home?.ready();
    await home?.steps.rest();
    const state = this.#stateFor(flat);
    const given = [...state.tensors.keys()].filter((name) => tensors.has(name));
    if (home !== undefined) {
      const whole = new Map(given.map((name) => [name, tensors.get(name)!]));
      await this.#restingOf(flat)!.write(step, whole);
    } else {
      for (const [name, tensor] of state.tensors) {
        const bytes = tensors.get(name);
        if (bytes === undefined) {
          flat.device.backend.run('fill', { out: tensor.view(), value: 0 });
        } else {
          tensor.storage.write(bytes);
        }
      }
    }
    state.step = step;
    state.unused.clear();
    for (const name of state.tensors.keys()) {
      if (!tensors.has(name)) {
        state.unused.add(name);
      }
    }
  }

  /**
   * Options and state by parameter name; waits for the device.
   * @param named usually module.namedParameters()
   * @throws {OptimizerError} where a parameter is unnamed or lies here only in part (sharded)
   */
  async stateDict(
    named: Iterable<readonly [string, Tensor]>,
  ): Promise<OptimizerStateDict<Options>> {
    const names = this.#namesOf(named);
    const plans = this.#plan();
    const leave = occupyHomes(flatsIn(plans), 'optimizer.stateDict');
    const states = plans.map(async ({ flat, members }) => {
      const state = await this.readFlatState(flat);
      return state === undefined ? [] : members.map((member) => memberState(member, state, names));
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
   * @throws {StateDictError} where names, shapes, groups or step counts do not fit
   */
  async loadStateDict(
    dict: OptimizerStateDict<Options>,
    named: Iterable<readonly [string, Tensor]>,
  ): Promise<void> {
    const names = this.#namesOf(named);
    const plans = this.#plan();
    checkStateDict(dict, { names, plans, numGroups: this.groups.length });
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
      await stateHomeOf(flat)?.ready(); // before anything changes
    }
    for (const [i, group] of groups.entries()) {
      Object.assign(this.groups[i]!, group);
    }
    for (const { flat, members } of plans) {
      this.#dropState(flat);
      const first = dict.state.get(names.get(members[0]!.param)!);
      if (first === undefined) {
        if (this.#restingOf(flat)?.step !== undefined) {
          await this.writeFlatState(flat, 0, new Map());
        }
        continue;
      }
      const whole = new Map<string, Uint8Array>();
      for (const { param, start } of members) {
        for (const [name, { data }] of dict.state.get(names.get(param)!)!.tensors) {
          if (!whole.has(name)) {
            whole.set(name, new Uint8Array(flat.size * 4));
          }
          whole.get(name)!.set(data, start * 4);
        }
      }
      await this.writeFlatState(flat, first.step, whole);
    }
  }

  /** Frees the state; the next step starts afresh. */
  dispose(): void {
    for (const flat of [...this.#states.keys()]) {
      this.#dropState(flat);
      flatHomeOf(flat)?.leaveState(this);
    }
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  /** The plan, made anew where parameters have been wrapped, packed or frozen since. */
  #plan(): readonly FlatPlan[] {
    const params = this.parameters();
    const isCurrent = this.#planned?.every(
      ([piece, requiresGrad], i) =>
        params[i]!.piece === piece && params[i]!.requiresGrad === requiresGrad,
    );
    if (isCurrent) {
      return this.#plans;
    }
    const before = this.#plans;
    const plans = planFlats(this.groups);
    if (this.#states.size > 0) {
      this.#moveStates(before, plans);
    }
    this.#plans = plans;
    this.#planned = params.map(({ piece, requiresGrad }) => [piece, requiresGrad]);
    return plans;
  }

  #stateFor(flat: Tensor): FlatState {
    const known = this.#states.get(flat);
    const missing = this.stateNames().filter((name) => known?.tensors.has(name) !== true);
    if (known !== undefined && missing.length === 0) {
      return known;
    }
    const resting = this.#restingOf(flat);
    const { device } = flat;
    const added = missing.map((name) => {
      const tensor =
        resting === undefined
          ? device.zeros([flat.size], { tag: 'optimizer' }).keep()
          : new Tensor(device.storage(flat.size, 'f32', 'optimizer'), [flat.size]);
      return [name, tensor] as const;
    });
    const tensors = new Map([...(known?.tensors ?? []), ...added]);
    const unused = new Set(known?.unused);
    for (const name of missing) {
      if (!resting?.has(name)) {
        unused.add(name);
      }
    }
    const state = { step: known?.step ?? resting?.step ?? 0, tensors, unused };
    this.#states.set(flat, state);
    return state;
  }

  /** This optimizer's state of a flat that rests off the device; undefined where state does not. */
  #restingOf(flat: Tensor): RestingState | undefined {
    return stateHomeOf(flat)?.stateOf(this, this.#signatureOf(flat));
  }

  #signatureOf(flat: Tensor): StateSignature {
    const ranges: [start: number, length: number, group: number][] = [];
    for (const { start, length, group } of this.#plan().find((plan) => plan.flat === flat)!
      .members) {
      const last = ranges.at(-1);
      if (last !== undefined && last[2] === group && last[0] + last[1] === start) {
        last[1] += length;
      } else if (length > 0) {
        ranges.push([start, length, group]);
      }
    }
    return { optimizer: this.kind, ranges };
  }

  #dropState(flat: Tensor): void {
    for (const tensor of this.#states.get(flat)?.tensors.values() ?? []) {
      tensor.dispose();
    }
    this.#states.delete(flat);
  }

  /** Carries state over to new flats: packing after some steps. */
  #moveStates(before: readonly FlatPlan[], after: readonly FlatPlan[]): void {
    const sources = new Map<Tensor, { member: FlatMember; state: FlatState | undefined }>();
    for (const { flat, members } of before) {
      const state = this.#states.get(flat);
      for (const member of members) {
        sources.set(member.param, { member, state });
      }
    }
    const old = new Set(this.#states.keys());
    for (const { flat, members } of after) {
      if (old.delete(flat)) {
        continue;
      }
      const found = members.map((member) => ({ member, source: sources.get(member.param) }));
      if (found.every(({ source }) => source?.state === undefined)) {
        continue;
      }
      const steps = new Set(found.map(({ source }) => source?.state?.step));
      const isMovable =
        steps.size === 1 &&
        stateHomeOf(flat) === undefined &&
        found.every(({ member, source }) => source?.member.length === member.length);
      if (!isMovable) {
        throw new OptimizerError(
          'optimizer: expected parameters to be sharded before the first step, but their state cannot follow them. Save a state dict first and load it after wrapping.',
        );
      }
      const state = this.#stateFor(flat);
      state.step = [...steps][0]!;
      for (const { member, source } of found) {
        copyState(source!, member, state);
        for (const name of source!.state?.tensors.keys() ?? []) {
          if (!source!.state!.unused.has(name)) {
            state.unused.delete(name);
          }
        }
      }
    }
    for (const flat of old) {
      this.#dropState(flat);
    }
  }

  #namesOf(named: Iterable<readonly [string, Tensor]>): Map<Tensor, string> {
    const names = new Map([...named].map(([name, tensor]) => [tensor, name] as const));
    for (const param of this.parameters()) {
      if (!names.has(param)) {
        throw new OptimizerError(
          `optimizer: expected a name for each parameter, got none for one of shape [${param.shape.join(', ')}].`,
        );
      }
      if (isSharded(param)) {
        throw new OptimizerError(
          `optimizer: expected all ${param.size} elements of '${names.get(param)}' here, got a shard of ${param.piece!.length}. For sharded parameters, gatherFullOptimStateDict and loadFullOptimStateDict of @shardweave/fsdp.`,
        );
      }
    }
    return names;
  }
}

function requireGroups(params: unknown): void {
  const isGroup = (value: unknown) =>
    typeof value === 'object' && value !== null && !Array.isArray(value) && !isTensor(value);
  if (Array.isArray(params) && params.every(isGroup)) {
    return;
  }
  throw new NnConfigError(
    `optimizer: expected an array of parameters or groups, got ${shown(params)}.`,
  );
}

function flatsIn(plans: readonly FlatPlan[]): Tensor[] {
  return plans.map(({ flat }) => flat);
}

/** Where the state of a flat rests, if not on the device. */
function stateHomeOf(flat: Tensor): FlatHome | undefined {
  const home = flatHomeOf(flat);
  return home?.holdsState ? home : undefined;
}
