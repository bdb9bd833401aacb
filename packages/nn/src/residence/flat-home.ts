// Where a flat rests between steps when that is not the device: host memory, or a disk. Here is the
// seam and the pipeline over it; StoredFlat implements it for fsdp and offload.

import type { Tensor } from '@shardweave/tensor-core';
import { OptimizerError } from '../errors.js';
import type { FlatState } from '../optim/optimizer-state.js';

/**
 * The home of one flat: its parameter, gradient and optimizer state rest there as bytes, and come to
 * the device for a visit. At rest `flat.grad` is undefined, and the storages of the flat and of its
 * state tensors are empty, unless the home holds gradients alone.
 *
 * Ordering: visits start in the order of the flats, a bounded number ahead of use. `start` touches no
 * device memory, so bytes come from a disk while kernels run. `load`, `store` and `drop` fill and free
 * it in program order: one flat at a time is on the device.
 *
 * Ownership: whoever steps makes the state tensors; the home fills and frees their storages and
 * `flat.grad`, and owns its host buffers.
 *
 * Failure: a rejected `load` leaves nothing on the device and what rests as it was. A rejected `store`
 * loses nothing: the home keeps the bytes until a later one succeeds, and visits see them.
 */
export interface FlatHome {
  /** Whether parameter and state rest there too, or the gradient alone. */
  readonly holdsState: boolean;
  /** Whether a gradient waits for a step. */
  readonly hasGradient: boolean;
  /** Forgets the gradient. */
  clearGradient(): void;
  /**
   * Resolves when it has its place in the store: awaited before state is read or written.
   * @throws {OptimizerError} where only a call of the module can give it one
   */
  ready(): Promise<void>;
  /** Steps that the state at rest has seen; undefined where none is, and before `ready`. */
  readonly restingStep: number | undefined;
  /** Begins a visit of parameter, gradient and state, which a step may change all but the gradient of. */
  start(state: FlatState): FlatVisit;
  /** Begins a visit of the gradient alone. */
  startGradient(): FlatVisit;
  /** f32 bytes of a state tensor at rest; the caller's. */
  readState(name: string): Promise<Uint8Array>;
  /** Replaces all state at rest. The arrays are the caller's again when it resolves. */
  writeState(step: number, tensors: ReadonlyMap<string, Uint8Array>): Promise<void>;
  /** What is under way with the flat that nothing else may come between; undefined at rest. */
  readonly occupant: string | undefined;
  /** Names what is under way; the returned function ends it. See occupyHomes. */
  occupy(by: string): () => void;
  /** Homes that share it make one generation of a step: its commit is called once at the end. */
  readonly steps: { commit(): Promise<void> };
}

/** One stay of a flat on its device. */
export interface FlatVisit {
  /** Waits for the bytes, fills the storages and uploads. */
  load(): Promise<void>;
  /** Queues the read-back of what may have changed and frees the storages; resolves at rest. */
  store(): Promise<void>;
  /** Frees the storages, or gives up a visit that has not loaded; what rests stays. */
  drop(): void;
}

/** One flat's turn in `visitFlats`. */
export interface FlatTurn {
  start(): FlatVisit;
  /** Encodes the kernels. */
  use(): void;
  /** Whether the visit's changes are kept. */
  readonly isChanging: boolean;
}

// Keyed by flat: a fact about that tensor, not state of this module.
const HOMES = new WeakMap<Tensor, FlatHome>();

/** Gives a flat its home. Before any step of it. */
export function setFlatHome(flat: Tensor, home: FlatHome): void {
  HOMES.set(flat, home);
}

/** A flat's home; undefined where it stays on the device. */
export function flatHomeOf(flat: Tensor): FlatHome | undefined {
  return HOMES.get(flat);
}

/**
 * Takes the homes of `flats` for one piece of work, such as a step. The returned function gives them
 * back.
 * @throws {OptimizerError} where another piece of work, or a backward, is not done; none is taken then
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
 * begin to come and as many earlier ones leave. A load that fails ends it; a store that fails lets
 * the rest go on, so that a step is whole. Rejects with the first failure when all is at rest.
 */
export async function visitFlats(turns: readonly FlatTurn[], ahead: number): Promise<void> {
  const started: FlatVisit[] = [];
  const leaving: Promise<void>[] = [];
  const failures: unknown[] = [];
  for (const [index, { use, isChanging }] of turns.entries()) {
    const last = Math.min(index + ahead, turns.length - 1);
    while (started.length <= last) {
      started.push(turns[started.length]!.start());
    }
    const visit = started[index]!;
    try {
      await visit.load();
      use();
    } catch (error) {
      failures.push(error);
      for (const open of started.slice(index)) {
        open.drop();
      }
      break;
    }
    if (!isChanging) {
      visit.drop();
      continue;
    }
    leaving.push(
      visit.store().catch((error: unknown) => {
        failures.push(error);
      }),
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
