// A module as a save sees it: of each flat, the elements of each parameter that are here, and of its
// optimizer state. The same for plain and packed parameters, for a rank's shards and for what rests in
// a store, because all of them are pieces of flats.

import type { HeldPiece, TensorSpec } from '@shardweave/checkpoint';
import type { Storage, Tensor } from '@shardweave/tensor-core';
import { byteSize } from '@shardweave/tensor-core';
import { restShape } from '../flat/encoded-parameter.js';
import { flatHomeOf } from '../flat/homes/flat-home.js';
import { pieceOf } from '../optim/flat-plan.js';
import { type FlatStateBytes, runAt, type StateRun } from '../optim/flat-state.js';
import type { Optimizer } from '../optim/optimizer.js';

// biome-ignore lint/suspicious/noExplicitAny: an optimizer of any options
export type AnyOptimizer = Optimizer<any>;

/** Names under which parameters are saved: their paths in the bare model. */
export type SavedNames = ReadonlyMap<Tensor, string>;

/** Elements [first, first + length) of a parameter, at `start` of its flat. */
export interface FlatShare {
  readonly param: Tensor;
  readonly name: string;
  readonly start: number;
  readonly length: number;
  readonly first: number;
}

/** How far each parameter of a flat has come; what was never stepped is absent. */
export type FlatProgress = ReadonlyMap<Tensor, Pick<StateRun, 'step' | 'names'>>;

/** That of the parameters of a flat that have elements here. */
export function progressOf(shares: readonly FlatShare[], runs: readonly StateRun[]): FlatProgress {
  return new Map(
    shares.flatMap(({ param, start, length }) => {
      const run = length === 0 ? undefined : runAt(runs, start);
      return run === undefined ? [] : [[param, { step: run.step, names: run.names }] as const];
    }),
  );
}

/** The parameters of each flat, in order of first appearance. */
export function sharesByFlat(names: SavedNames): Map<Tensor, FlatShare[]> {
  const flats = new Map<Tensor, FlatShare[]>();
  for (const [param, name] of names) {
    const { flat, start, length, first = 0 } = pieceOf(param);
    const shares = flats.get(flat) ?? [];
    flats.set(flat, shares);
    shares.push({ param, name, start, length, first });
  }
  return flats;
}

/** How bytes come from the device. */
export type ReadStorage = (
  storage: Storage,
  byteOffset: number,
  byteLength: number,
) => Promise<Uint8Array>;

/** Pieces of the parameters, in the dtype in which they rest. */
export function parameterPieces(
  flat: Tensor,
  shares: readonly FlatShare[],
  readStorage: ReadStorage,
): HeldPiece[] {
  const { dtype } = flat;
  const elementBytes = byteSize(dtype);
  const home = flatHomeOf(flat);
  return shares.map((share) => ({
    ...parameterSpec(flat, share),
    ...rangeOf(share),
    read: async (from, to) => {
      const byteOffset = (share.start + from - share.first) * elementBytes;
      const byteLength = (to - from) * elementBytes;
      if (!home?.holdsState) {
        // Devices read whole words; a half word at a parameter's end is followed by padding.
        const words = Math.ceil(byteLength / 4) * 4;
        const start = flat.offset * elementBytes + byteOffset;
        return (await readStorage(flat.storage, start, words)).subarray(0, byteLength);
      }
      await home.steps.rest();
      return home.readParameter(byteOffset, byteLength);
    },
  }));
}

/**
 * Pieces of what `optimizer` keeps of a flat; those that are in a store come to the host for it, one
 * flat at a time.
 * @param options.progress what all who have parts of the flat agree on; zeros where nothing of it is here
 */
export async function statePieces(
  flat: Tensor,
  shares: readonly FlatShare[],
  {
    optimizer,
    progress,
    readStorage,
  }: {
    readonly optimizer: AnyOptimizer;
    readonly progress: FlatProgress;
    readonly readStorage: ReadStorage;
  },
): Promise<HeldPiece[]> {
  const live = optimizer.stateOf(flat);
  const atRest: FlatStateBytes | undefined = flatHomeOf(flat)?.holdsState
    ? await optimizer.readFlatState(flat)
    : undefined;
  return shares.flatMap((share) =>
    (progress.get(share.param)?.names ?? []).map((state): HeldPiece => {
      const read = async (from: number, to: number) => {
        const byteOffset = (share.start + from - share.first) * 4;
        const byteLength = (to - from) * 4;
        const bytes = atRest?.tensors.get(state)?.subarray(byteOffset, byteOffset + byteLength);
        const tensor = atRest === undefined ? live?.tensors.get(state) : undefined;
        if (bytes !== undefined || tensor === undefined) {
          return bytes ?? new Uint8Array(byteLength);
        }
        return readStorage(tensor.storage, byteOffset, byteLength);
      };
      return { ...stateSpec(share, state), ...rangeOf(share), read };
    }),
  );
}

export function parameterSpec({ dtype }: Tensor, { name, param }: FlatShare): TensorSpec {
  return { kind: 'parameter', name, dtype, shape: restShape(param) };
}

export function stateSpec({ name, param }: FlatShare, state: string): TensorSpec {
  return { kind: 'state', name, state, dtype: 'f32', shape: param.shape };
}

export function rangeOf({ first, length }: FlatShare): {
  readonly start: number;
  readonly end: number;
} {
  return { start: first, end: first + length };
}
