// What all optimizers share: parameter groups, the plan of flats, state that is made when it is first
// needed, and state dicts by parameter name. A step encodes kernels, one a flat, and waits only for
// flats that rest elsewhere than on the device.

import { isTensor, slice, Tensor, type View } from '@shardweave/tensor-core';
import {
  checkOptions,
  type OptionRule,
  type OptionRules,
  optional,
  shown,
  whole,
} from '../check-options.js';
import { NnConfigError, OptimizerError, StateDictError } from '../errors.js';
import { clearGradients } from '../flat/clear-gradients.js';
import { isSharded } from '../parameter-place.js';
import {
  type FlatHome,
  type FlatTurn,
  flatHomeOf,
  occupyHomes,
  visitFlats,
} from '../residence/flat-home.js';
import { type FlatMember, type FlatPlan, planFlats } from './flat-plan.js';
import {
  type FlatState,
  type FlatStateBytes,
  memberState,
  type OptimizerStateDict,
} from './optimizer-state.js';

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

  /** Names of the state tensors that a flat needs with the groups' present options. */
  protected abstract stateNames(): readonly string[];

  /**
   * Encodes the step of one flat: reads its gradient, changes `param` (f32, its values) in place.
   * `state.step` counts this step already.
   */
  protected abstract stepFlat(
    plan: FlatPlan,
    param: View,
    state: FlatState,
    options: StepOptions,
  ): void;

  /** All parameters, group by group. */
  parameters(): Tensor[] {
    return this.groups.flatMap((group) => group.params);
  }

  /**
   * Steps every flat that has a gradient. Where parameters share a flat (sharded or packed), those
   * without a gradient of their own count as having zeros, so decay and momentum move them, but frozen
   * ones stay. Flats on the device
   * are encoded when it returns; the promise waits for those that rest elsewhere, which come one
   * after the other, and for their commit.
   * @throws {OptimizerError} where those are in a forward, backward or step that has not ended;
   * nothing is stepped then
   */
  async step(options: StepOptions = {}): Promise<void> {
    checkOptions('optimizer.step', options, STEP_RULES);
    this.#checkGroups(this.groups);
    const plans = this.#plan();
    const leave = occupyHomes(flatsIn(plans), 'optimizer.step');
    return this.#stepPlans(plans, options).finally(leave);
  }

  async #stepPlans(plans: readonly FlatPlan[], options: StepOptions): Promise<void> {
    const turns: FlatTurn[] = [];
    const commits = new Set<FlatHome['steps']>();
    for (const plan of plans) {
      const home = flatHomeOf(plan.flat);
      if (home === undefined) {
        if (plan.flat.grad !== undefined) {
          this.#stepPlan(plan, options);
        }
      } else if (home.hasGradient) {
        commits.add(home.steps);
        const start = () => home.start(this.#stateFor(plan.flat));
        const turn = { start, use: () => this.#stepPlan(plan, options), isChanging: true };
        if (plan.segments.length > 0) {
          turns.push(turn);
        } else {
          plan.flat.storage.markWritten();
        }
      }
    }
    if (commits.size === 0) {
      return;
    }
    await visitFlats(turns, options.flatsAhead ?? 1);
    for (const steps of commits) {
      await steps.commit();
    }
  }

  #stepPlan(plan: FlatPlan, options: StepOptions): void {
    if (plan.segments.length > 0) {
      const state = this.#stateFor(plan.flat);
      state.step += 1;
      this.#stepInF32(plan, state, options);
    }
    // Copies gathered or published from it are stale: on all ranks alike, also where a rank's
    // part is all padding.
    plan.flat.storage.markWritten();
  }

  /** Kernels step f32: 16-bit parameters are stepped in a copy and rounded once. */
  #stepInF32(plan: FlatPlan, state: FlatState, options: StepOptions): void {
    const { flat } = plan;
    if (flat.dtype === 'f32') {
      this.stepFlat(plan, flat.view(), state, options);
      return;
    }
    const { backend } = flat.device;
    const copy = flat.device.storage(flat.size, 'f32', 'staging');
    copy.fill();
    backend.run('cast', { x: flat.view(), out: copy.view() });
    this.stepFlat(plan, copy.view(), state, options);
    backend.run('cast', { x: copy.view(), out: flat.view() });
    copy.release();
  }

  /** Frees all gradients. */
  zeroGrad(): void {
    clearGradients(this.parameters());
  }

  /** The state of a flat (or plain parameter), if it has been stepped; live, for sharding. */
  stateOf(flat: Tensor): FlatState | undefined {
    return this.#states.get(flat);
  }

  /** The state of a flat, wherever it rests; undefined before its first step. For sharding. */
  async readFlatState(flat: Tensor): Promise<FlatStateBytes | undefined> {
    const home = stateHomeOf(flat);
    await home?.ready();
    if (this.stateOf(flat) === undefined && home?.restingStep === undefined) {
      return undefined;
    }
    const { step, tensors } = this.#stateFor(flat);
    const reads = [...tensors].map(async ([name, { storage }]) => {
      return [name, await (home?.readState(name) ?? storage.read())] as const;
    });
    return { step, tensors: new Map(await Promise.all(reads)) };
  }

  /**
   * Replaces the state of a flat, zeros where a name is missing. The arrays are the caller's
   * again when it resolves. For sharding.
   */
  async writeFlatState(
    flat: Tensor,
    step: number,
    tensors: ReadonlyMap<string, Uint8Array>,
  ): Promise<void> {
    const home = stateHomeOf(flat);
    await home?.ready();
    const state = this.#stateFor(flat);
    const whole = [...state.tensors.keys()].map((name) => {
      return [name, tensors.get(name) ?? new Uint8Array(flat.size * 4)] as const;
    });
    if (home !== undefined) {
      await home.writeState(step, new Map(whole));
    } else {
      for (const [name, bytes] of whole) {
        state.tensors.get(name)!.storage.write(bytes);
      }
    }
    state.step = step;
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
    this.#checkDict(dict, names, plans);
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
        const isAtRest = stateHomeOf(flat)?.restingStep !== undefined;
        if (isAtRest) {
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
    const home = stateHomeOf(flat);
    const { device } = flat;
    const added = missing.map((name) => {
      const tensor =
        home === undefined
          ? device.zeros([flat.size], { tag: 'optimizer' }).keep()
          : new Tensor(device.storage(flat.size, 'f32', 'optimizer'), [flat.size]);
      return [name, tensor] as const;
    });
    const tensors = new Map([...(known?.tensors ?? []), ...added]);
    const state = { step: known?.step ?? home?.restingStep ?? 0, tensors };
    this.#states.set(flat, state);
    return state;
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

  #checkDict(
    dict: OptimizerStateDict<Options>,
    names: ReadonlyMap<Tensor, string>,
    plans: readonly FlatPlan[],
  ): void {
    const known = new Map([...names].map(([tensor, name]) => [name, tensor]));
    const unexpected = [...dict.state.keys()].filter((name) => !known.has(name));
    const mismatched = [...dict.state].flatMap(([name, { tensors }]) => {
      const size = known.get(name)?.size;
      const isFitting = [...tensors.values()].every(({ data }) => data.byteLength === size! * 4);
      return size === undefined || isFitting ? [] : [name];
    });
    const missing: string[] = [];
    for (const { members } of plans) {
      const states = members.map(({ param }) => dict.state.get(names.get(param)!));
      if (new Set(states.map((state) => state?.step)).size > 1) {
        missing.push(...members.map(({ param }) => names.get(param)!));
      }
    }
    if (dict.paramGroups.length !== this.groups.length) {
      throw new StateDictError(
        `optimizer.loadStateDict: expected ${this.groups.length} parameter groups, got ${dict.paramGroups.length}.`,
      );
    }
    if (unexpected.length + mismatched.length + missing.length > 0) {
      throw new StateDictError(
        `optimizer.loadStateDict: unknown parameters: ${list(unexpected)}; misshapen state: ${list(mismatched)}; parameters of one flat with unequal step counts: ${list(missing)}.`,
        { missing, unexpected, mismatched },
      );
    }
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

function copyState(
  source: { readonly member: FlatMember; readonly state: FlatState | undefined },
  target: FlatMember,
  into: FlatState,
): void {
  if (target.length === 0) {
    return;
  }
  const { device } = target.param;
  const part = (tensor: Tensor, start: number) =>
    slice(tensor, { axis: 0, start, end: start + target.length });
  for (const [name, from] of source.state?.tensors ?? []) {
    const to = into.tensors.get(name)!;
    device.noGrad(() =>
      device.scope(() => device.copyInto(part(to, target.start), part(from, source.member.start))),
    );
  }
}

function list(names: readonly string[]): string {
  return names.length === 0 ? 'none' : names.join(', ');
}
