// Where a flat rests between steps when it is not on the device: in host memory, or on a disk. This
// file has the seam and the pipeline that visits flats. StoredFlat implements the seam for fsdp and
// offload.

import type { Tensor, View } from '@shardweave/tensor-core';
import { OptimizerError } from '../../errors.js';
import type { FlatPlace } from '../layout/flat-layout.js';
import type { StateRun } from '../layout/flat-state.js';
import type { RestingState } from './resting-state.js';
import type { RestingStates } from './resting-states.js';
import type { StoreUse } from './store-use.js';
import type { StoredParameter } from './stored-parameter.js';

/**
 * The home of one flat: its parameter, gradient and optimizer state rest there as bytes, and come
 * to the device for a visit, part by part. At rest `flat.grad` is undefined, and the storages of
 * the flat and of its state are empty, unless the home holds gradients alone.
 *
 * Ordering: visits start in the order of the flats, a bounded number ahead of use. `start` and
 * `load` touch no device memory, so bytes come from a disk while kernels run. `run` fills and frees
 * it in program order: one part of one flat at a time is on the device.
 *
 * Ownership: each optimizer that steps a flat has a state of its own there.
 *
 * Failure: a rejected `load` or `store` of a visit that is not kept leaves what rests as it was.
 * Where `store` rejects and the visit is kept, the home holds the new bytes until `flush` writes
 * them, and visits see them.
 */
export interface FlatHome {
  /** Whether parameter and state rest there too. Otherwise only the gradient does. */
  readonly holdsState: boolean;
  /** Whether a gradient waits for a step. */
  readonly hasGradient: boolean;
  /**
   * A number that changes whenever something is added to the gradient and whenever it is cleared.
   */
  readonly gradientVersion: number;
  /** Forgets the gradient. With `places` it becomes zeros there and stays elsewhere. */
  clearGradient(places?: readonly FlatPlace[]): void;
  /**
   * Delays clearings until the returned function is called, because a step still needs the
   * gradient.
   */
  holdGradient(): () => void;
  /**
   * Resolves when the flat has its place in the store. Await it before state is read or written.
   * @throws {OptimizerError} where only a call of the module can give it one
   */
  ready(): Promise<void>;
  /** The parameter at rest. */
  readonly parameter: StoredParameter;
  /** The optimizer states at rest. */
  readonly states: RestingStates;
  /** Begins a visit of parameter, gradient and, where it rests here, the state. */
  start(state: RestingState | undefined, step: VisitStep): FlatVisit;
  /** Begins a visit of the whole gradient only. */
  startGradient(): FlatVisit;
  /** Writes values that the store refused before. */
  flush(): Promise<void>;
  /** The work that has the flat for itself at present; undefined at rest. */
  readonly occupant: string | undefined;
  /** Gives the flat to the named work. The returned function ends that. See occupyHomes. */
  occupy(by: string): () => void;
  /** The steps of the store. Homes that share it commit a step together. */
  readonly steps: StoreUse;
}

/** What a visit does with the state at rest. */
export interface VisitStep {
  /** The names of the tensors that it brings to the device. */
  readonly names: readonly string[];
  /** The runs of the state after the visit. */
  readonly runs: readonly StateRun[];
}

/** A run of a flat's elements on the device. */
export interface FlatPart extends FlatPlace {
  /**
   * The parameter in the flat's dtype. It is undefined in a visit of the gradient only, and where
   * the parameter rests on the device.
   */
  readonly param: View | undefined;
  /** The gradient, f32. */
  readonly grad: Tensor;
  /** Tensors of the optimizer's state by name, f32. Those that rest on the device are missing. */
  readonly state: ReadonlyMap<string, View>;
}

/** One stay of a flat on its device. */
export interface FlatVisit {
  /** Resolves when the host has all bytes. */
  load(): Promise<void>;
  /**
   * Brings one part after the other to the device, calls `use` with it and frees it. Where the
   * visit changes what rests, the part is read back before it is freed. Resolves when all parts are
   * back.
   */
  run(use: (part: FlatPart) => void, options: { readonly isChanging: boolean }): Promise<void>;
  /** Resolves when the changed values are at rest. */
  store(): Promise<void>;
  /** Whether the new values count as the home's from here on, even if the store lacks them. */
  readonly isKept: boolean;
  /** Ends the visit without a change. What rests stays as it is. */
  drop(): void;
}

/** One flat's turn in `visitFlats`. */
export interface FlatTurn {
  start(): FlatVisit;
  /** Encodes the kernels. */
  use(part: FlatPart): void;
  /** Whether the visit's changes are kept. */
  readonly isChanging: boolean;
  /** Called when the home has the new values. */
  kept?(): void;
}

/** Gives a flat its home, before the first step that changes the flat. */
export function setFlatHome(flat: Tensor, home: FlatHome): void {
  flat.home = home;
}

/** A flat's home; undefined where it stays on the device. */
export function flatHomeOf(flat: Tensor): FlatHome | undefined {
  return flat.home as FlatHome | undefined;
}

/**
 * Takes the homes of `flats` for one piece of work, such as a step. The returned function gives
 * them back.
 * @throws {OptimizerError} where another piece of work or a backward has not ended; no home is
 * taken then
 */
export function occupyHomes(flats: readonly Tensor[], by: string): () => void {
  const homes = new Set<FlatHome>();
  for (const flat of flats) {
    const home = flatHomeOf(flat);
    if (home === undefined) {
      continue;
    }
    homes.add(home);
    const running = flat.device.isInBackward ? 'backward' : home.occupant;
    if (running === undefined) {
      continue;
    }
    throw notAtRest(by, flat, running);
  }
  const ends = [...homes].map((home) => home.occupy(by));
  return () => {
    for (const end of ends) {
      end();
    }
  };
}

/**
 * Refuses a call that begins beside a backward, wherever the flats rest: it would see gradients
 * that are not whole. A hook of the backward knows which are.
 * @throws {OptimizerError} where a backward has not ended
 */
export function requireNoBackward(flats: readonly Tensor[], by: string): void {
  const flat = flats.find(isBesideBackward);
  if (flat !== undefined) {
    throw notAtRest(by, flat, 'backward');
  }
}

/** Whether a backward of the tensor's device runs beside the code that asks: no hook called it. */
export function isBesideBackward({ device }: Tensor): boolean {
  return device.isInBackward && !device.autograd.isInHook;
}

/** The error of a call beside other work that nobody awaited. */
export function notAtRest(by: string, { name }: Tensor, running: string): OptimizerError {
  const hint = running === 'backward' ? ': await loss.backward()' : '';
  return new OptimizerError(
    `${by}: expected the parameters of '${name}' at rest, got ${running} under way. Await it first${hint}.`,
  );
}

/**
 * Brings flats to the device one after the other. While one is in use, up to `ahead` later ones are
 * on their way to the device, and as many earlier ones on their way back. The first failure stops
 * this; flats that were used before it are still stored. It rejects when all flats are at rest.
 */
export async function visitFlats(turns: readonly FlatTurn[], ahead: number): Promise<void> {
  const started: FlatVisit[] = [];
  const leaving: Promise<void>[] = [];
  const failures: unknown[] = [];
  for (const [index, turn] of turns.entries()) {
    const last = Math.min(index + ahead, turns.length - 1);
    while (started.length <= last) {
      started.push(turns[started.length]!.start());
    }
    const visit = started[index]!;
    try {
      await visit.load();
      if (failures.length === 0) {
        await visit.run(turn.use, turn);
      }
    } catch (error) {
      failures.push(error);
    }
    if (failures.length > 0) {
      for (const open of started.slice(index)) {
        open.drop();
      }
      break;
    }
    if (!turn.isChanging) {
      visit.drop();
      continue;
    }
    leaving.push(
      visit
        .store()
        .catch((error: unknown) => void failures.push(error))
        .then(() => (visit.isKept ? turn.kept?.() : undefined)),
    );
    if (leaving.length > ahead) {
      await leaving.shift();
    }
  }
  await Promise.all(leaving);
  if (failures.length > 0) {
    throw failures[0];
  }
}
