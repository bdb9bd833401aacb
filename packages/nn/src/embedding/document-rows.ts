// Documents as rows of token ids: one or several in a row, and padding at a row's end. Numbers of
// documents and positions follow from the lengths, which the host knows, so nothing is read back.

import { type Device, ShapeError, type Tensor } from '@shardweave/tensor-core';
import { shown, whole } from '../check-options.js';
import { NnConfigError } from '../errors.js';

/**
 * The tokens of each row's documents, in order: `[[3, 2], [4]]` are three documents in two rows.
 * What is left at the end of a row is padding.
 */
export type DocumentLengths = readonly (readonly number[])[];

/** Where a document's tokens are. */
export interface DocumentSpan {
  readonly row: number;
  readonly start: number;
  readonly length: number;
}

const LENGTH = whole(1);

/** A module that is called with rows of documents. */
export interface RowsCall {
  /** The module's name, for errors. */
  readonly name: string;
  readonly ids: Tensor;
  readonly lengths: DocumentLengths | undefined;
}

/** The documents that a call's rows have: without lengths each row is one of all its tokens. */
export function documentsOf({ name, ids, lengths }: RowsCall): {
  readonly spans: readonly DocumentSpan[];
  readonly shape: readonly [batch: number, seq: number];
} {
  const [batch, seq] = ids.shape;
  if (ids.rank !== 2 || batch === undefined || seq === undefined) {
    throw new ShapeError(`${name}: expected ids [batch, seq], got [${ids.shape.join(', ')}].`);
  }
  const given = lengths ?? new Array<readonly number[]>(batch).fill([seq]);
  return { spans: spansOf(`${name}.call`, given, [batch, seq]), shape: [batch, seq] };
}

/**
 * The spans of documents, row by row.
 * @throws {NnConfigError} for lengths that are not those of rows [batch, seq], or of no document
 */
function spansOf(
  op: string,
  lengths: DocumentLengths,
  [batch, seq]: readonly [number, number],
): DocumentSpan[] {
  const isList = Array.isArray(lengths) && lengths.every((row) => Array.isArray(row));
  if (!isList || lengths.length !== batch) {
    throw new NnConfigError(
      `${op}: expected lengths to be a list for each of ${batch} rows, got ${isList ? `${lengths.length} lists` : shown(lengths)}.`,
    );
  }
  const spans = lengths.flatMap((row, index) => {
    let end = 0;
    return row.map((length) => {
      const start = end;
      end += length;
      if (!LENGTH.holds(length) || end > seq) {
        throw new NnConfigError(
          `${op}: expected lengths of at least 1 that add up to at most ${seq}, got ${shown(row)} (row ${index}).`,
        );
      }
      return { row: index, start, length };
    });
  });
  if (spans.length === 0) {
    throw new NnConfigError(`${op}: expected lengths of a document, got none.`);
  }
  return spans;
}

/** What tells the documents of rows apart, as far as they need it; u32 [batch, seq]. */
export interface DocumentPlaces {
  /** Absent where each row is one document without padding. */
  readonly segments?: Tensor;
  /** Absent where each row begins with its only document. */
  readonly positions?: Tensor;
}

/** The segments and positions of documents. Padding is a segment of its own at each row's end. */
export function placesOf(
  device: Device,
  spans: readonly DocumentSpan[],
  [batch, seq]: readonly [number, number],
): DocumentPlaces {
  const isWhole = spans.length === batch && spans.every(({ length }) => length === seq);
  if (isWhole) {
    return {};
  }
  const segments = new Uint32Array(batch * seq).fill(spans.length);
  const positions = new Uint32Array(batch * seq);
  for (const [number, { row, start, length }] of spans.entries()) {
    const first = row * seq + start;
    segments.fill(number, first, first + length);
    for (let i = 0; i < length; i++) {
      positions[first + i] = i;
    }
  }
  const tensor = (values: Uint32Array) => device.tensor(values, [batch, seq], { tag: 'staging' });
  const isPacked = spans.some(({ start }) => start > 0);
  return { segments: tensor(segments), ...(isPacked && { positions: tensor(positions) }) };
}

/** Rows of ids with what lies in them. */
export interface DocumentRows {
  /** u32 [batch, seq]. Padding is the id 0. */
  readonly ids: Tensor;
  readonly lengths: DocumentLengths;
}

/** A document: its token ids. */
export type Document = ArrayLike<number>;

/** How documents become rows. */
export interface DocumentRowsOptions {
  /** Who asks, for errors. */
  readonly op: string;
  readonly rowLength: number | undefined;
}

/**
 * Puts documents into rows, in their order: each into a row of its own, which is as long as the
 * longest document, or with `rowLength` as many into a row as fit.
 * @throws {NnConfigError} for no documents, for one without tokens, and for one longer than a row
 */
export function documentRows(
  device: Device,
  documents: readonly Document[],
  { op, rowLength }: DocumentRowsOptions,
): DocumentRows {
  const sizes = documents.map(({ length }) => length);
  const seq = rowLength ?? Math.max(...sizes);
  const wrong = sizes.findIndex((size) => !(size >= 1 && size <= seq));
  if (sizes.length === 0 || wrong >= 0) {
    throw new NnConfigError(
      `${op}: expected documents of 1 to ${sizes.length === 0 ? (rowLength ?? 'any number of') : seq} tokens, got ${sizes.length === 0 ? 'no document' : `one of ${sizes[wrong]} (document ${wrong})`}.`,
    );
  }
  const lengths: number[][] = [];
  let room = 0;
  for (const size of sizes) {
    if (rowLength === undefined || size > room) {
      lengths.push([]);
      room = seq;
    }
    lengths.at(-1)!.push(size);
    room -= size;
  }
  const shape = [lengths.length, seq] as const;
  const ids = new Uint32Array(shape[0] * seq);
  for (const [index, { row, start }] of spansOf(op, lengths, shape).entries()) {
    ids.set(documents[index]!, row * seq + start);
  }
  return { ids: device.tensor(ids, shape, { tag: 'staging' }), lengths };
}
