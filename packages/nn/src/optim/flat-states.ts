// The state that one optimizer keeps for all its flats, on the device or in a flat's home. This
// file makes it when it is first needed, reads and replaces it, and moves it along where parameters
// come to lie in other flats.

import { slice, Tensor } from '@shardweave/tensor-core';
import { OptimizerError } from '../errors.js';
import type { FlatMember, FlatPlan } from '../flat/layout/flat-plan.js';
import { FlatState, type FlatStateBytes, type StateRun } from '../flat/layout/flat-state.js';
import type { PinnedBytes } from '../flat/stores/byte-store.js';
import { type FlatHome, flatHomeOf } from '../flat/stores/flat-home.js';
import type { RestingState, StateSignature } from '../flat/stores/resting-state.js';

export interface FlatStatesOptions {
  /** The optimizer. A home uses it to tell the state of one optimizer from that of another. */
  readonly owner: object;
  /** The optimizer's class name, which a store keeps with the state. */
  kind(): string;
  /** The plan of a flat; undefined where the optimizer does not step it. */
  planOf(flat: Tensor): FlatPlan | undefined;
  /** The names of the state tensors that a flat needs at present. */
  namesFor(plan: FlatPlan): readonly string[];
}

export class FlatStates {
  readonly #options: FlatStatesOptions;
  readonly #states = new Map<Tensor, FlatState>();

  constructor(options: FlatStatesOptions) {
    this.#options = options;
  }

  /** The state of a flat; undefined before its first use. */
  get(flat: Tensor): FlatState | undefined {
    return this.#states.get(flat);
  }

  /**
   * The state of a flat with all the tensors that it needs at present. Missing ones are made and
   * hold zeros.
   */
  ensure(plan: FlatPlan): FlatState {
    const { flat } = plan;
    const resting = this.restingOf(flat);
    let state = this.#states.get(flat);
    if (state === undefined) {
      state = new FlatState(plan.members, resting?.runs);
      this.#states.set(flat, state);
    }
    for (const name of this.#options.namesFor(plan)) {
      if (!state.tensors.has(name)) {
        state.tensors.set(name, tensorOf(flat, resting !== undefined));
      }
    }
    return state;
  }

  /** The runs of a flat's state, wherever it rests; empty before its first step. */
  async runs(flat: Tensor): Promise<readonly StateRun[]> {
    if (this.#options.planOf(flat) === undefined) {
      return [];
    }
    await atRest(flat);
    return this.get(flat)?.runs ?? this.restingOf(flat)?.runs ?? [];
  }

  /** The bytes of a flat's state, wherever it rests; undefined before its first step. */
  async read(flat: Tensor): Promise<FlatStateBytes | undefined> {
    if ((await this.runs(flat)).length === 0) {
      return undefined;
    }
    const resting = this.restingOf(flat);
    const { runs, tensors } = this.ensure(this.#planOf(flat));
    const reads = [...tensors].map(async ([name, { storage }]) => {
      return [name, await (resting?.read(name) ?? storage.read())] as const;
    });
    return { runs, tensors: new Map(await Promise.all(reads)) };
  }

  /**
   * Pins the state of a flat that rests in a store. The result has the bytes by name as they are
   * now, without the tensors that are all zeros; undefined stands for one that the store cannot
   * pin.
   */
  async pin(flat: Tensor): Promise<ReadonlyMap<string, PinnedBytes | undefined>> {
    const hasRuns = (await this.runs(flat)).length > 0;
    const resting = this.restingOf(flat);
    const names = hasRuns ? [...this.ensure(this.#planOf(flat)).tensors.keys()] : [];
    const stored = names.filter((name) => resting!.has(name));
    return new Map(
      await Promise.all(stored.map(async (name) => [name, await resting!.pin(name)] as const)),
    );
  }

  /** Replaces the state of a flat. The arrays are the caller's again when the promise resolves. */
  async write(flat: Tensor, { runs, tensors }: FlatStateBytes): Promise<void> {
    await atRest(flat);
    const state = this.ensure(this.#planOf(flat));
    const names = [...state.tensors.keys()];
    const resting = this.restingOf(flat);
    state.runs = runs.map((run) => {
      return { ...run, names: run.names.filter((name) => names.includes(name)) };
    });
    if (resting !== undefined) {
      const given = names.filter((name) => tensors.has(name));
      const whole = new Map(given.map((name) => [name, tensors.get(name)!]));
      await resting.write({ runs: state.runs, tensors: whole });
      return;
    }
    for (const [name, tensor] of state.tensors) {
      const bytes = tensors.get(name);
      if (bytes === undefined) {
        flat.device.backend.run('fill', { out: tensor.view(), value: 0 });
      } else {
        tensor.storage.write(bytes);
      }
    }
  }

  /**
   * This optimizer's state of a flat whose home holds it; undefined where the state lives on the
   * device.
   */
  restingOf(flat: Tensor): RestingState | undefined {
    const home = stateHomeOf(flat);
    return home?.states.of(this.#options.owner, this.#signatureOf(flat));
  }

  /** Waits until a flat's home can have its state read or written. */
  async ready(flat: Tensor): Promise<void> {
    await stateHomeOf(flat)?.ready();
  }

  /**
   * Moves state to the new flats of parameters that were wrapped after some steps. Packing can do
   * this.
   * @throws {OptimizerError} where the state would have to move to a store or to other ranks
   */
  move(before: readonly FlatPlan[], after: readonly FlatPlan[]): void {
    const sources = new Map<Tensor, Source>();
    for (const { flat, members } of before) {
      const state = this.#states.get(flat);
      for (const member of members) {
        sources.set(member.param, { member, state });
      }
    }
    const old = new Set(this.#states.keys());
    for (const plan of after) {
      const { flat, members } = plan;
      if (old.delete(flat)) {
        continue;
      }
      const found = members.flatMap((member) => {
        const source = sources.get(member.param);
        return source?.state === undefined ? [] : [{ member, source }];
      });
      if (found.length === 0) {
        continue;
      }
      const isMovable =
        stateHomeOf(flat) === undefined &&
        found.every(({ member, source }) => source.member.length === member.length);
      if (!isMovable) {
        throw new OptimizerError(
          'optimizer: expected parameters to be sharded before the first step, but their state cannot follow them. Save a state dict first and load it after wrapping.',
        );
      }
      const state = this.ensure(plan);
      for (const { member, source } of found) {
        copyState(source, member, state);
      }
    }
    for (const flat of old) {
      this.drop(flat);
    }
  }

  /** Frees the part of a flat's state that is on the device. */
  drop(flat: Tensor): void {
    this.#states.get(flat)?.dispose();
    this.#states.delete(flat);
  }

  dispose(): void {
    for (const flat of [...this.#states.keys()]) {
      this.drop(flat);
      flatHomeOf(flat)?.states.leave(this.#options.owner);
    }
  }

  #planOf(flat: Tensor): FlatPlan {
    return this.#options.planOf(flat)!;
  }

  #signatureOf(flat: Tensor): StateSignature {
    const ranges: [start: number, length: number, group: number][] = [];
    for (const { start, length, group } of this.#planOf(flat).members) {
      const last = ranges.at(-1);
      if (last !== undefined && last[2] === group && last[0] + last[1] === start) {
        last[1] += length;
      } else if (length > 0) {
        ranges.push([start, length, group]);
      }
    }
    return { optimizer: this.#options.kind(), ranges };
  }
}

interface Source {
  readonly member: FlatMember;
  readonly state: FlatState | undefined;
}

/** The home that holds a flat's state, if it is not on the device. */
function stateHomeOf(flat: Tensor): FlatHome | undefined {
  const home = flatHomeOf(flat);
  return home?.holdsState ? home : undefined;
}

/** Waits for steps over the flat's store to end. */
async function atRest(flat: Tensor): Promise<void> {
  const home = stateHomeOf(flat);
  await home?.ready();
  await home?.steps.rest();
}

function tensorOf(flat: Tensor, isResting: boolean): Tensor {
  const { device, size } = flat;
  return isResting
    ? new Tensor(device.storage(size, 'f32', 'optimizer'), [size])
    : device.zeros([size], { tag: 'optimizer' }).keep();
}

/**
 * Copies one member's part of a flat's state, and its count of steps, into another flat's state.
 */
function copyState({ member, state }: Source, target: FlatMember, into: FlatState): void {
  into.advance([[target.param, state!.progressOf(member.param)]]);
  if (target.length === 0) {
    return;
  }
  const { device } = target.param;
  const part = (tensor: Tensor, start: number) =>
    slice(tensor, { axis: 0, start, end: start + target.length });
  for (const [name, from] of state!.tensors) {
    const to = into.tensors.get(name);
    if (to !== undefined) {
      device.noGrad(() =>
        device.scope(() => device.copyInto(part(to, target.start), part(from, member.start))),
      );
    }
  }
}
