// A module as a save sees it: for each flat the elements that this process has of each parameter
// and of its optimizer state. Plain and packed parameters, a rank's shards and what rests in a
// store are all pieces of flats, so one code saves all of them.

import type { HeldFile, HeldPiece, TensorSpec } from '@shardweave/checkpoint';
import type { Storage, Tensor } from '@shardweave/tensor-core';
import { byteSize } from '@shardweave/tensor-core';
import { having, type OptionRule } from '../check-options.js';
import { pieceOf } from '../flat/layout/flat-plan.js';
import { runAt, type StateRun } from '../flat/layout/flat-state.js';
import type { FlatHome } from '../flat/stores/flat-home.js';
import type { Optimizer } from '../optim/optimizer.js';
import { restShape } from '../parameters/encoded-parameter.js';

/** An optimizer of any class, whatever its options are. */
// biome-ignore lint/suspicious/noExplicitAny: an optimizer of any options
export type AnyOptimizer = Optimizer<any>;

/** One optimizer. A model that several step is saved once with each. */
export const OPTIMIZER: OptionRule = having(
  'one optimizer, such as an AdamW',
  'step',
  'zeroGrad',
  'flatStateRuns',
);

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

/** How many steps each parameter of a flat has seen. One that was never stepped is absent. */
export type FlatProgress = ReadonlyMap<Tensor, Pick<StateRun, 'step' | 'names'>>;

/** The progress of those parameters of a flat that have elements here. */
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

/** The bytes of a flat, or of one tensor of its optimizer state, wherever they are. */
export interface FlatBytes {
  /** @param into an array of `byteLength` bytes, which the call may fill and return */
  read(byteOffset: number, byteLength: number, into: Uint8Array): Promise<Uint8Array>;
  /** A file of exactly these bytes that never changes. */
  readonly file?: HeldFile;
}

/** Where a flat's values come from. */
export interface FlatSource {
  readonly parameter: FlatBytes;
  /**
   * The state tensors of an optimizer by name, undefined where one is all zeros. Asked only for a
   * flat that has been stepped.
   */
  state(optimizer: AnyOptimizer): Promise<(name: string) => FlatBytes | undefined>;
}

/** How bytes come from the device. */
export type ReadStorage = (
  storage: Storage,
  byteOffset: number,
  byteLength: number,
  into: Uint8Array,
) => Promise<Uint8Array>;

/** The source of a flat that is on the device. */
export function deviceSource(flat: Tensor, readStorage: ReadStorage): FlatSource {
  const { storage } = flat;
  const offset = flat.offset * byteSize(flat.dtype);
  return {
    parameter: {
      read: async (byteOffset, byteLength, into) => {
        if (byteLength % 4 === 0) {
          return readStorage(storage, offset + byteOffset, byteLength, into);
        }
        // Devices read whole words; a half word at a parameter's end is followed by padding.
        const words = new Uint8Array(Math.ceil(byteLength / 4) * 4);
        await readStorage(storage, offset + byteOffset, words.byteLength, words);
        return words.subarray(0, byteLength);
      },
    },
    state: async (optimizer) => {
      const tensors = optimizer.stateOf(flat)?.tensors;
      return (name) => {
        const tensor = tensors?.get(name);
        return tensor && { read: (...range) => readStorage(tensor.storage, ...range) };
      };
    },
  };
}

/** The source of a flat that rests in a store. Its state is on the host for one flat at a time. */
export function restingSource(flat: Tensor, home: FlatHome): FlatSource {
  return {
    parameter: {
      read: async (byteOffset, byteLength) => {
        await home.steps.rest();
        return home.parameter.read(byteOffset, byteLength);
      },
    },
    state: async (optimizer) => {
      const tensors = (await optimizer.readFlatState(flat))?.tensors;
      return (name) => {
        const bytes = tensors?.get(name);
        return bytes && { read: async (start, length) => bytes.subarray(start, start + length) };
      };
    },
  };
}

/** Pieces of the parameters, in the dtype in which they rest. */
export function parameterPieces(
  flat: Tensor,
  shares: readonly FlatShare[],
  bytes: FlatBytes,
): HeldPiece[] {
  return shares.map((share) => ({
    ...parameterSpec(flat, share),
    ...rangeOf(share),
    ...placeIn(bytes, share, byteSize(flat.dtype)),
  }));
}

/**
 * Pieces of the state that an optimizer keeps for a flat.
 * @param options.progress the steps that all processes with parts of the flat agree on, also for
 * parameters of which this one has no elements
 */
export function statePieces(
  shares: readonly FlatShare[],
  {
    progress,
    bytesOf,
  }: {
    readonly progress: FlatProgress;
    readonly bytesOf: (name: string) => FlatBytes | undefined;
  },
): HeldPiece[] {
  return shares.flatMap((share) =>
    (progress.get(share.param)?.names ?? []).map((state) => ({
      ...stateSpec(share, state),
      ...rangeOf(share),
      ...placeIn(bytesOf(state) ?? ZEROS, share, 4),
    })),
  );
}

const ZEROS: FlatBytes = { read: async (_, __, into) => into.fill(0) };

/** The part of a flat's bytes that is a share's. */
function placeIn(
  { read, file }: FlatBytes,
  { start, first }: FlatShare,
  elementBytes: number,
): Pick<HeldPiece, 'read' | 'inFile'> {
  return {
    read: (from, to, into) =>
      read((start + from - first) * elementBytes, (to - from) * elementBytes, into),
    inFile: file && { file, byteOffset: start * elementBytes },
  };
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
