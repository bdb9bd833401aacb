// Tests share these small saves of two parts, the places where they lie, and the result of loading
// them.

import {
  beginSave,
  type HeldPiece,
  openSave,
  type PieceStore,
  piecesIn,
  type TensorSpec,
  type WantedPiece,
  writePart,
} from '@shardweave/checkpoint';
import { pieceDirectory } from '@shardweave/checkpoint/node';
import { createHostStore } from '@shardweave/shard-store';
import { newFolder } from '../../../../tooling/test-kit/folders.ts';

export const PLACES: readonly (readonly [string, () => Promise<PieceStore>])[] = [
  ['a directory', async () => pieceDirectory(newFolder())],
  ['host memory', async () => piecesIn(createHostStore(), { prefix: 'saves/' })],
];

export interface Values extends TensorSpec {
  readonly values: Float32Array;
}

/** Returns values that identify their tensor, their place and `seed`. */
export function tensor(
  name: string,
  shape: readonly number[],
  options: { readonly seed?: number; readonly state?: string; readonly kind?: 'buffer' } = {},
): Values {
  const { seed = 0, state, kind } = options;
  const size = shape.reduce((product, dim) => product * dim, 1);
  const first = name.length + seed * 1000 + (state?.length ?? 0) * 100;
  const values = Float32Array.from({ length: size }, (_, i) => first + i / 128);
  return {
    kind: state === undefined ? (kind ?? 'parameter') : 'state',
    name,
    state,
    dtype: 'f32',
    shape,
    values,
  };
}

/**
 * Makes a model with everything that a save can hold, enough for several files. One tensor is
 * longer than a piece.
 */
export function model(seed: number): Values[] {
  return [
    tensor('0.weight', [3, 100_001], { seed }),
    tensor('0.bias', [5], { seed }),
    tensor('empty', [0, 4], { seed }),
    tensor('1.running_mean', [7], { seed, kind: 'buffer' }),
    tensor('0.weight', [3, 100_001], { seed, state: 'expAvg' }),
  ];
}

/** Returns elements [start, end) of a tensor, by default all of them. */
export function held({ values, ...spec }: Values, start = 0, end = values.length): HeldPiece {
  const read = async (from: number, to: number) => new Uint8Array(values.slice(from, to).buffer);
  return { ...spec, start, end, read };
}

/** Returns part `rank` of `count` parts of each tensor. */
export function shareOf(tensors: readonly Values[], rank: number, count: number): HeldPiece[] {
  return tensors.map((each) => {
    const cut = (at: number) => Math.floor((each.values.length * at) / count / 128) * 128;
    const isLast = rank === count - 1;
    return held(each, cut(rank), isLast ? each.values.length : cut(rank + 1));
  });
}

export interface Loaded {
  readonly piece: WantedPiece;
  readonly values: Float32Array;
  numWrites: number;
}

/**
 * Returns a piece to load, and the array that it goes to, which is NaN until something is written.
 */
export function wanted({ values: saved, ...spec }: Values, start = 0, end = saved.length): Loaded {
  const values = new Float32Array(end - start).fill(Number.NaN);
  const loaded: Loaded = {
    piece: {
      ...spec,
      start,
      end,
      write: (at, bytes) => {
        loaded.numWrites += 1;
        new Uint8Array(values.buffer).set(bytes, (at - start) * 4);
      },
    },
    values,
    numWrites: 0,
  };
  return loaded;
}

export async function save(
  store: PieceStore,
  tensors: readonly Values[],
  options: { readonly numParts?: number; readonly step?: number } = {},
): Promise<void> {
  const { numParts = 2, step = 1 } = options;
  const session = await beginSave(store);
  try {
    const parts = [];
    for (let rank = 0; rank < numParts; rank++) {
      const part = { save: session.id, part: `rank-${rank}` };
      parts.push(await writePart(store, shareOf(tensors, rank, numParts), part));
    }
    const optimizer = {
      kind: 'Sgd',
      steps: { '0.weight': step },
      groups: [{ lr: 0.5, params: ['0.weight'] }],
    };
    await session.publish(JSON.parse(JSON.stringify(parts)), { optimizer, extra: { step } });
  } catch (error) {
    await session.abandon().catch(() => undefined); // The session has ended if it was publishing.
    throw error;
  }
}

/** Loads everything, and throws where a value differs from `tensors`. */
export async function expectSaved(store: PieceStore, tensors: readonly Values[]): Promise<void> {
  const found = await openSave(store);
  const loaded = tensors.map((each) => wanted(each));
  const pieces = loaded.map(({ piece }) => piece);
  found.checkFit(pieces);
  await found.verify(pieces);
  await found.fill(pieces);
  for (const [i, { values }] of loaded.entries()) {
    if (!Buffer.from(values.buffer).equals(Buffer.from(tensors[i]!.values.buffer))) {
      throw new Error(`other values of ${tensors[i]!.name}`);
    }
  }
}
