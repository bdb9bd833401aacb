// Where a flat rests between steps when it is not on the device: in host memory, or on a disk. This
// is the seam and the pipeline over it; StoredFlat implements the seam for fsdp and offload.

import type { Tensor, View } from '@shardweave/tensor-core';
import { OptimizerError } from '../../errors.js';
import type { StateRun } from '../../optim/flat-state.js';
import type { FlatPlace } from '../flat-layout.js';
import type { PinnedBytes } from './byte-store.js';
import type { RestingState, StateSignature } from './resting-state.js';

/**
 * The home of one flat: its parameter, gradient and optimizer state rest there as bytes, and come
 * to the device for a visit, part by part. At rest `flat.grad` is undefined, and the storages of
 * the flat and of its state are empty, unless the home holds gradients alone.
 *
 * Ordering: visits start in the order of the flats, a bounded number ahead of use. `start` and
 * `load` touch no device memory, so bytes come from a disk while kernels run. `run` fills and frees
 * it in program order: one part of one flat at a time is on the device.
 *
 * Ownership: each optimizer that steps a flat has a state of its own there (stateOf).
 *
 * Failure: a rejected `load` or `store` of a visit that is not kept leaves what rests as it was.
 * Where `store` rejects and the visit is kept, the home holds the new bytes until `flush` writes
 * them, and visits see them.
 */
export interface FlatHome {
  /** Whether parameter and state rest there too, or the gradient alone. */
  readonly holdsState: boolean;
  /** Whether a gradient waits for a step. */
  readonly hasGradient: boolean;
  /** Changes with every addition to the gradient and every clearing. */
  readonly gradientVersion: number;
  /** Forgets the gradient; with `places` it is zeros there, and stays elsewhere. */
  clearGradient(places?: readonly FlatPlace[]): void;
  /**
   * Clearings take effect only when the returned function is called: a step still needs the
   * gradient.
   */
  holdGradient(): () => void;
  /**
   * Resolves when it has its place in the store: awaited before state is read or written.
   * @throws {OptimizerError} where only a call of the module can give it one
   */
  ready(): Promise<void>;
  /**
   * The state that an optimizer keeps there: its own, or one at rest from an earlier process that
   * nobody has taken over yet; a new one where there is none.
   * @throws {OptimizerError} where the only ones at rest are those of other optimizers
   */
  stateOf(owner: object, signature: StateSignature): RestingState;
  /**
   * Its owner steps no more; the state stays for another process, or until another optimizer's
   * takes its place.
   */
  leaveState(owner: object): void;
  /** Begins a visit of parameter, gradient and, where it rests here, the state. */
  start(state: RestingState | undefined, step: VisitStep): FlatVisit;
  /** Begins a visit of the gradient alone, whole. */
  startGradient(): FlatVisit;
  /** Writes what the store refused. */
  flush(): Promise<void>;
  /** Bytes of the parameter at rest; the caller's. */
  readParameter(byteOffset: number, byteLength: number): Promise<Uint8Array>;
  /** Keeps the parameter at rest as it is now; undefined where its store can't. */
  pinParameter(): Promise<PinnedBytes | undefined>;
  /**
   * Replaces a part of the parameter at rest. The whole is written, so parts are best joined
   * before.
   */
  writeParameter(bytes: Uint8Array, byteOffset: number): Promise<void>;
  /** What is under way with the flat that nothing else may come between; undefined at rest. */
  readonly occupant: string | undefined;
  /** Names what is under way; the returned function ends it. See occupyHomes. */
  occupy(by: string): () => void;
  /** Homes that share it make one generation of a step. */
  readonly steps: HomeSteps;
}

/** What a visit does to the state at rest. */
export interface VisitStep {
  /** The tensors that it brings. */
  readonly names: readonly string[];
  /** What the state has seen afterwards. */
  readonly runs: readonly StateRun[];
}

/** A step over homes that can be finished after it failed. */
export interface UnfinishedStep {
  finish(): Promise<void>;
}

/** The steps over all homes of one store, one at a time. See Note [steps over a store]. */
export interface HomeSteps {
  /**
   * Resolves when no step is under way. Steps that were left half-way are finished first, all but
   * `step`.
   */
  rest(step?: UnfinishedStep): Promise<void>;
  /** Whether `step` may begin. */
  isFree(step: UnfinishedStep): boolean;
  /** Begins a step. The returned function ends it: whole, or half-way where it failed. */
  begin(step: UnfinishedStep): (isWhole: boolean) => void;
  /**
   * Makes what is stored the generation that a later process finds.
   * @param step the step that ends with it; without one the commit waits until no step is under way
   */
  commit(step?: UnfinishedStep): Promise<void>;
}

/** A run of a flat's elements on the device. */
export interface FlatPart extends FlatPlace {
  /**
   * Values in the flat's dtype. Undefined in a visit of the gradient alone, and where the parameter
   * rests on the device.
   */
  readonly param: View | undefined;
  /** f32. */
  readonly grad: Tensor;
  /** Tensors of the optimizer's state by name, f32, without those that rest on the device. */
  readonly state: ReadonlyMap<string, View>;
}

/** One stay of a flat on its device. */
export interface FlatVisit {
  /** Resolves when the host has the bytes. */
  load(): Promise<void>;
  /**
   * Brings one part after the other to the device, calls `use` with it and frees it. Where the
   * visit changes what rests, the part is read back before it is freed. Resolves when all parts are
   * back.
   */
  run(use: (part: FlatPart) => void, options: { readonly isChanging: boolean }): Promise<void>;
  /** Resolves when what was changed is at rest. */
  store(): Promise<void>;
  /** Whether the new values are those of the home from here on, even if the store lacks them. */
  readonly isKept: boolean;
  /** Ends the visit without a change: what rests stays as it is. */
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
 * @throws {OptimizerError} where another piece of work, or a backward, is not done; none is taken
 * then
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
    throw new OptimizerError(
      `${by}: expected the parameters of '${flat.name}' at rest, got ${running} under way. Await it first.`,
    );
  }
  const ends = [...homes].map((home) => home.occupy(by));
  return () => {
    for (const end of ends) {
      end();
    }
  };
}

/**
 * Brings flats to the device one after the other. While one is in use, up to `ahead` later ones
 * begin to come and as many earlier ones leave. The first failure ends it; those that were used
 * before still leave. Rejects when all is at rest.
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
