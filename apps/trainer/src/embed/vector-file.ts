// Vectors as they are written: JSON lines, or the bytes of NumPy's .npy file (format 1.0, which
// numpy.lib.format describes).

import type { EmbeddingRows } from '../figures/embedding-rows.js';
import type { TextLine } from './text-lines.js';

/** Texts, and the embedding of each. */
export interface VectorChunk {
  readonly lines: readonly Pick<TextLine, 'fields'>[];
  readonly rows: EmbeddingRows;
}

/** So many significant digits tell each float32 from all others. */
const DIGITS = 9;

/** A line of JSON for each text, as {"id", "embedding": [0.1, -0.2]}. */
export function vectorLines({ lines, rows }: VectorChunk): string {
  return lines
    .map(({ fields }, i) => {
      const embedding = Array.from(rows.row(i), (value) => Number(value.toPrecision(DIGITS)));
      return `${JSON.stringify({ ...fields, embedding })}\n`;
    })
    .join('');
}

/** The bytes of each header here: a multiple of 64 that holds any shape. */
const HEADER_BYTES = 128;
const MAGIC = '\x93NUMPY\x01\x00';

/** The header of a float32 array [count, width] in the order of C, always of as many bytes. */
export function npyHeader(count: number, width: number): Uint8Array<ArrayBuffer> {
  const text = `{'descr': '<f4', 'fortran_order': False, 'shape': (${count}, ${width}), }`;
  const length = HEADER_BYTES - MAGIC.length - 2;
  const header = new Uint8Array(HEADER_BYTES);
  header.set(Buffer.from(MAGIC, 'latin1'));
  new DataView(header.buffer).setUint16(MAGIC.length, length, true);
  header.set(Buffer.from(`${text.padEnd(length - 1)}\n`, 'latin1'), MAGIC.length + 2);
  return header;
}
