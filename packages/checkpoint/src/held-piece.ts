// What a process has of a model, and what it wants of a save: ranges of named tensors. Packages
// that have tensors make these descriptions; nothing here asks where elements lie.

import type { DType } from '@shardweave/dtypes';
import { StateDictError } from './errors.js';

/**
 * The kind of a saved tensor. 'state' belongs to an optimizer, and has the name of its parameter.
 */
export type TensorKind = 'parameter' | 'buffer' | 'state';

/**
 * What identifies a tensor of a save: its kind, its name and, for optimizer state, which state it
 * is.
 */
export interface TensorId {
  readonly kind: TensorKind;
  /** The path of the parameter or buffer in the bare model. */
  readonly name: string;
  /** The name of the state in its optimizer, such as `expAvg`; other kinds have none. */
  readonly state?: string | undefined;
}

/** A tensor of a save with its dtype and the shape of the whole. */
export interface TensorSpec extends TensorId {
  readonly dtype: DType;
  /** The shape of the whole tensor, whichever piece this is. */
  readonly shape: readonly number[];
}

/** The elements [start, end) of a tensor, row-major; the range may be empty. */
interface Range {
  readonly start: number;
  readonly end: number;
}

/** A file that never changes, such as one of a store's generation. */
export interface HeldFile {
  readonly byteLength: number;
  /** Gives the file one more name, a path; false where that is impossible, as on another device. */
  linkAs(path: string): Promise<boolean>;
}

/** A piece that this process writes. */
export interface HeldPiece extends TensorSpec, Range {
  /**
   * The file where the piece lies already: a save in a directory of the same device links that file
   * and copies nothing.
   */
  readonly inFile?: { readonly file: HeldFile; readonly byteOffset: number } | undefined;
  /**
   * The little-endian bytes of elements [start, end) of the tensor, which are a part of the piece.
   * @param into as many bytes, to be filled and returned; a piece that has its bytes elsewhere may
   * return those, if they do not change later
   */
  read(start: number, end: number, into: Uint8Array): Promise<Uint8Array>;
}

/** A piece that this process loads. */
export interface WantedPiece extends TensorSpec, Range {
  /** Takes the elements from `start` on, in `dtype`. The bytes are lent until it settles. */
  write(start: number, bytes: Uint8Array): void | Promise<void>;
}

/** A text that identifies a tensor. Parameters and buffers share one space of names. */
export function tensorKey({ kind, name, state = '' }: TensorId): string {
  return JSON.stringify(kind === 'state' ? [name, state] : [name]);
}

/** The name of a tensor in messages: `0.weight`, `expAvg of 0.weight`. */
export function labelOf({ kind, name, state }: TensorId): string {
  return kind === 'state' ? `${state} of ${name}` : name;
}

export function sizeOf({ shape }: { readonly shape: readonly number[] }): number {
  return shape.reduce((product, dim) => product * dim, 1);
}

/** @throws {StateDictError} where two pieces of one tensor differ in dtype or shape */
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

/** The dtype and shape as text, such as `f32 [3, 4]`. */
export function typeText({ dtype, shape }: TensorSpec): string {
  return `${dtype} [${shape.join(', ')}]`;
}
