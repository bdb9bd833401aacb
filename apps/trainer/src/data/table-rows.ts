// The rows of a table in Parquet, as JSON. A row group is read at a time, and of a large one whose
// columns are plain a part at a time, so that memory does not grow with the file.

import type { AsyncBuffer, FileMetaData, SchemaTree } from 'hyparquet';
import { UsageError } from '../errors.js';
import type { DataBytes } from './data-bytes.js';
import type { Entry, NeededFields } from './data-file.js';

/** The bytes of values that are decoded at once; as objects they take several times as much. */
const PART_BYTES = 2 ** 22;

/** Rows that are read at once: those from `start` to before `end`. */
interface Part {
  readonly start: number;
  readonly end: number;
  /** Whether its row group begins with it. */
  readonly isFirst: boolean;
}

/**
 * The rows of a file, counted from 1.
 * @throws {UsageError} where the file is no whole table, or has values that can't be read
 */
export async function* tableEntries(
  data: DataBytes,
  neededFields: NeededFields,
): AsyncGenerator<Entry> {
  // The bytes are hashed in order, which is not how a table is read.
  for await (const _ of data.chunks()) {
  }
  const { parquetMetadataAsync, parquetReadObjects, parquetSchema } = await import('hyparquet');
  const { compressors } = await import('hyparquet-compressors');
  const file = new GroupBytes(data);
  const metadata = await parquetMetadataAsync(file).catch((cause: unknown) => {
    throw explain(cause, data, 'is no whole table in Parquet');
  });
  const fields = parquetSchema(metadata).children;
  const columns = neededFields(fields.map(({ element }) => element.name));
  const needed = fields.filter(({ element }) => columns?.includes(element.name) ?? true);
  const numRows = Number(metadata.num_rows);
  for (const { start, end, isFirst } of partsOf(metadata, needed)) {
    if (isFirst) {
      file.forget();
    }
    const range = { rowStart: start, rowEnd: end };
    const rows = await parquetReadObjects({
      ...{ file, metadata, compressors, ...range },
      ...(columns && { columns: [...columns] }),
    }).catch((cause: unknown) => {
      throw explain(cause, data, `can't be read in rows ${start + 1} to ${end}`);
    });
    for (const [i, row] of rows.entries()) {
      const number = start + i + 1;
      const endByte = Math.floor((data.total * number) / numRows);
      yield { text: JSON.stringify(row, plain), number, endByte };
    }
  }
}

/** The parts of a table, none of which reaches over the end of a row group. */
function* partsOf(
  { row_groups: groups }: FileMetaData,
  needed: readonly SchemaTree[],
): Generator<Part> {
  const names = needed.map(({ element }) => element.name);
  // Lists and structs are decoded from the beginning of their group, whichever rows are asked for.
  const isPlain = needed.every(
    ({ element, children }) => children.length === 0 && element.repetition_type !== 'REPEATED',
  );
  let first = 0;
  for (const { columns, num_rows } of groups) {
    const numRows = Number(num_rows);
    const bytes = columns
      .filter(({ meta_data: meta }) => names.includes(meta?.path_in_schema[0] ?? ''))
      .reduce((sum, { meta_data: meta }) => sum + Number(meta!.total_uncompressed_size), 0);
    const numParts = isPlain ? Math.max(1, Math.ceil(bytes / PART_BYTES)) : 1;
    const size = Math.max(1, Math.ceil(numRows / numParts));
    for (let start = 0; start < numRows; start += size) {
      const end = first + Math.min(start + size, numRows);
      yield { start: first + start, end, isFirst: start === 0 };
    }
    first += numRows;
  }
}

/** What of a file is asked for, kept while its row group is read part by part. */
class GroupBytes implements AsyncBuffer {
  readonly byteLength: number;
  readonly #data: DataBytes;
  readonly #kept = new Map<string, Promise<ArrayBuffer>>();

  constructor(data: DataBytes) {
    this.byteLength = data.total;
    this.#data = data;
  }

  slice(start: number, end = this.byteLength): Promise<ArrayBuffer> {
    const key = `${start}-${end}`;
    const bytes = this.#kept.get(key) ?? this.#data.bytesAt(start, end);
    this.#kept.set(key, bytes);
    return bytes;
  }

  forget(): void {
    this.#kept.clear();
  }
}

/** What JSON has for values that only tables have; a date has its own form. */
function plain(_key: string, value: unknown): unknown {
  if (typeof value === 'bigint') {
    return Number(value);
  }
  return ArrayBuffer.isView(value) ? Array.from(value as Uint8Array, Number) : value;
}

function explain(cause: unknown, { flag, file }: DataBytes, reason: string): unknown {
  return cause instanceof UsageError
    ? cause
    : new UsageError(
        `${flag}: ${file} ${reason} (${(cause as Error).message}). Get the file anew, or write its rows as JSON lines.`,
        { cause },
      );
}
