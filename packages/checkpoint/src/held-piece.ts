// What a process has of a model, and what it wants of a save: ranges of named tensors. Whoever has
// tensors makes these of them; nothing here asks where elements lie.

import type { DType } from '@shardweave/dtypes';
import { StateDictError } from './errors.js';

/** State is an optimizer's, of the parameter with the same name. */
export type TensorKind = 'parameter' | 'buffer' | 'state';

/** What tells the tensors of a save apart: the kind, the name and the optimizer state it is. */
export interface TensorId {
  readonly kind: TensorKind;
  /** Path of the parameter or buffer in the bare model. */
  readonly name: string;
  /** The name of state in its optimizer, such as `expAvg`; other kinds have none. */
  readonly state?: string | undefined;
}

/** A tensor of a save with its dtype and the shape of the whole. */
export interface TensorSpec extends TensorId {
  readonly dtype: DType;
  /** The shape is that of the whole tensor, whichever piece this is. */
  readonly shape: readonly number[];
}

/** Elements [start, end) of a tensor, row-major. May be none. */
interface Range {
  readonly start: number;
  readonly end: number;
}

/** A file that never changes, such as one of a store's generation. */
export interface HeldFile {
  readonly byteLength: number;
  /** Gives it one more name, a path; false where that can't be, as on another device. */
  linkAs(path: string): Promise<boolean>;
}

/** A piece that this process writes. */
export interface HeldPiece extends TensorSpec, Range {
  /**
   * Where it lies already: a save in a directory of the same device takes that file, and copies
   * nothing.
   */
  readonly inFile?: { readonly file: HeldFile; readonly byteOffset: number } | undefined;
  /**
   * Little-endian bytes of elements [start, end) of the tensor, a part of the piece.
   * @param into as many bytes, to be filled and returned; whoever has them elsewhere may return
   * those, if they do not change later
   */
  read(start: number, end: number, into: Uint8Array): Promise<Uint8Array>;
}

/** A piece that this process loads. */
export interface WantedPiece extends TensorSpec, Range {
  /** Takes the elements from `start` on, in `dtype`. The bytes are lent until it settles. */
  write(start: number, bytes: Uint8Array): void | Promise<void>;
}

/** One text a tensor. Parameters and buffers share their names. */
export function tensorKey({ kind, name, state = '' }: TensorId): string {
  return JSON.stringify(kind === 'state' ? [name, state] : [name]);
}

/** How messages call a tensor: `0.weight`, `expAvg of 0.weight`. */
export function labelOf({ kind, name, state }: TensorId): string {
  return kind === 'state' ? `${state} of ${name}` : name;
}

export function sizeOf({ shape }: { readonly shape: readonly number[] }): number {
  return shape.reduce((product, dim) => product * dim, 1);
}

/** @throws {StateDictError} where two pieces of one tensor are of different tensors */
export function requireAlike(operation: string, one: TensorSpec, other: TensorSpec): void {
  if (typeText(one) === typeText(other)) {
    return;
  }
  const label = labelOf(one);
  throw new StateDictError(
    `${operation}: expected all pieces of '${label}' alike, got ${typeText(one)} and ${typeText(other)}.`,
    { mismatched: [label] },
  );
}

/** `f32 [3, 4]` */
export function typeText({ dtype, shape }: TensorSpec): string {
  return `${dtype} [${shape.join(', ')}]`;
}
