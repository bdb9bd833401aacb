// Reads an index and trusts nothing in it: every field is checked before anything acts on it,
// because a wrong number would be taken for a place or a length.

import { byteSize, type DType } from '@shardweave/dtypes';
import { CheckpointCorruptError, CheckpointFormatError, CheckpointMissingError } from './errors.js';
import { labelOf, sizeOf, type TensorSpec, tensorKey } from './held-piece.js';
import type { PieceReader } from './piece-store.js';
import { requireReader } from './require-store.js';
import {
  FORMAT,
  INDEX_FILE,
  isChecked,
  pieceByteLength,
  type SavedOptimizer,
  type SavedPiece,
  type SavedTensor,
  type SaveIndex,
  saveOf,
  VERSION,
} from './save-index.js';

/** The format that the first saves of fsdp name. */
const FORMAT_1 = 'shardweave-shards';
const DTYPES: readonly string[] = ['f32', 'f16', 'bf16', 'i32', 'u32'] satisfies DType[];
const KINDS: readonly string[] = ['parameter', 'buffer', 'state'];

/** The index; undefined where there is none. Throws as readIndex does. */
export async function findIndex(reader: PieceReader): Promise<SaveIndex | undefined> {
  const bytes = await wholeIndex(reader);
  return bytes && parseIndex(new TextDecoder().decode(bytes), reader.description);
}

/** The bytes of one index, also where a save replaces it after the look at its length. */
async function wholeIndex(reader: PieceReader): Promise<Uint8Array | undefined> {
  requireReader(reader);
  let byteLength = await reader.byteLength(INDEX_FILE);
  while (byteLength !== undefined) {
    const bytes = new Uint8Array(byteLength);
    const failure = await reader.read(INDEX_FILE, bytes, { offset: 0 }).then(
      () => undefined,
      (error: unknown) => ({ error }),
    );
    const before: number = byteLength;
    byteLength = await reader.byteLength(INDEX_FILE);
    if (byteLength === before) {
      if (failure !== undefined) {
        throw failure.error;
      }
      return bytes;
    }
  }
  return undefined;
}

/**
 * @throws {CheckpointMissingError} where there is no index
 * @throws {CheckpointFormatError} for other formats, and for fields that are not what they should
 * be
 * @throws {CheckpointCorruptError} where its checksum is wrong
 */
export async function readIndex(reader: PieceReader): Promise<SaveIndex> {
  const index = await findIndex(reader);
  if (index !== undefined) {
    return index;
  }
  throw new CheckpointMissingError(
    `openSave: expected '${INDEX_FILE}' in ${reader.description}, got no such file. A save that did not end leaves none.`,
  );
}

/** The index of a file's text; `where` is for errors. Throws as readIndex does. */
export function parseIndex(text: string, where: string): SaveIndex {
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch {
    throw wrong(where, '', 'JSON', 'something else');
  }
  const fields = new Fields(parsed, where);
  const first = (parsed ?? {}) as { readonly format?: unknown; readonly version?: unknown };
  if (first.format === FORMAT_1) {
    throw wrong(
      where,
      '',
      `${FORMAT} version ${VERSION}`,
      `format 1 ('${FORMAT_1}' version ${first.version}), whose pieces have no checksums. Load it with the version of @shardweave/fsdp that wrote it, and save again; or save into another place`,
    );
  }
  const index = fields.object('index');
  const format = index.get('format');
  const version = index.get('version');
  if (format !== FORMAT || version !== VERSION) {
    throw wrong(where, '', `${FORMAT} version ${VERSION}`, `'${format}' version ${version}`);
  }
  if (!isChecked(text)) {
    throw new CheckpointCorruptError(
      `openSave: expected the checksum that '${INDEX_FILE}' in ${where} begins with, got another one of its text.`,
      { file: INDEX_FILE },
    );
  }
  const files = filesIn(index);
  const tensors = index.list('tensors').map((entry) => tensorIn(entry, files));
  const keys = new Set<string>();
  for (const [i, tensor] of tensors.entries()) {
    const key = tensorKey(tensor);
    if (keys.has(key)) {
      throw wrong(where, `tensors[${i}].name`, 'each tensor once', `'${labelOf(tensor)}' twice`);
    }
    keys.add(key);
  }
  return {
    id: index.text('id'),
    files: Object.fromEntries(files.map(({ name, byteLength }) => [name, byteLength])),
    tensors,
    optimizer: optimizerIn(index),
    extra: index.object('extra').record,
  };
}

interface IndexedFile {
  readonly name: string;
  readonly byteLength: number;
}

function filesIn(index: Fields): IndexedFile[] {
  return index.list('files').map((file) => {
    const name = file.text('name');
    // A name with a path in it could lead out of the directory.
    if (saveOf(name) === undefined) {
      throw file.wrong('name', 'a file of a save', name);
    }
    return { name, byteLength: file.count('byteLength') };
  });
}

function tensorIn(fields: Fields, files: readonly IndexedFile[]): SavedTensor {
  const kind = fields.text('kind', KINDS) as TensorSpec['kind'];
  const shape = fields.list('shape').map((dim) => dim.count(''));
  const size = sizeOf({ shape });
  const spec: TensorSpec = {
    kind,
    name: fields.text('name'),
    ...(kind === 'state' ? { state: fields.text('state') } : {}),
    dtype: fields.text('dtype', DTYPES) as DType,
    shape,
  };
  if (!Number.isSafeInteger(size * byteSize(spec.dtype))) {
    throw fields.wrong('shape', 'fewer than 2^53 bytes', shape);
  }
  let end = 0;
  const pieces = fields.list('pieces').map((row): SavedPiece => {
    const [start, pieceEnd, number, byteOffset, checksum] = [0, 1, 2, 3, 4].map((i) =>
      row.count(`[${i}]`),
    ) as [number, number, number, number, number];
    const file = files[number];
    if (file === undefined) {
      throw row.wrong('[2]', `the number of one of ${files.length} files`, number);
    }
    if (start !== end) {
      throw row.wrong('[0]', `element ${end}, where the piece before ends`, start);
    }
    if (pieceEnd <= start || pieceEnd > size) {
      throw row.wrong('[1]', `an end above ${start} and up to ${size}`, pieceEnd);
    }
    const last = byteOffset + pieceByteLength({ start, end: pieceEnd }, spec);
    if (!(last <= file.byteLength)) {
      throw row.wrong('[3]', `a place within ${file.byteLength} bytes`, byteOffset);
    }
    end = pieceEnd;
    return { start, end, file: file.name, byteOffset, checksum };
  });
  if (end !== size) {
    throw fields.wrong('pieces', `all ${size} elements of '${labelOf(spec)}'`, `${end} of them`);
  }
  return { ...spec, pieces };
}

function optimizerIn(index: Fields): SavedOptimizer | undefined {
  if (index.get('optimizer') === null) {
    return undefined;
  }
  const optimizer = index.object('optimizer');
  const steps = optimizer.object('steps');
  for (const name of Object.keys(steps.record)) {
    steps.count(name);
  }
  return {
    kind: optimizer.text('kind'),
    steps: steps.record as Readonly<Record<string, number>>,
    groups: optimizer.list('groups').map((group) => {
      group.list('params').map((name) => name.text(''));
      return group.record;
    }),
  };
}

/** One value of an index, and where it stands. */
class Fields {
  readonly #value: unknown;
  readonly #where: string;
  readonly #path: string;

  constructor(value: unknown, where: string, path = '') {
    this.#value = value;
    this.#where = where;
    this.#path = path;
  }

  /** The value of a field, or of an item as `[0]`; with '' the value itself. */
  get(name: string): unknown {
    if (name === '') {
      return this.#value;
    }
    const key = name.startsWith('[') ? name.slice(1, -1) : name;
    const value = Object(this.#value) as Readonly<Record<string, unknown>>;
    return Object.hasOwn(value, key) ? value[key] : undefined;
  }

  get record(): Readonly<Record<string, unknown>> {
    return this.#value as Readonly<Record<string, unknown>>;
  }

  object(name: string): Fields {
    const value = this.get(name);
    if (typeof value !== 'object' || value === null || Array.isArray(value)) {
      throw this.wrong(name, 'an object', value);
    }
    return this.#at(name, value);
  }

  list(name: string): Fields[] {
    const value = this.get(name);
    if (!Array.isArray(value)) {
      throw this.wrong(name, 'an array', value);
    }
    return value.map((item, i) => this.#at(`${name}[${i}]`, item));
  }

  text(name: string, among?: readonly string[]): string {
    const value = this.get(name);
    if (typeof value !== 'string' || among?.includes(value) === false) {
      throw this.wrong(name, among === undefined ? 'a text' : `one of ${among.join(', ')}`, value);
    }
    return value;
  }

  /** A whole number up to 2^53, beyond which not every whole number has a representation. */
  count(name: string): number {
    const value = this.get(name);
    if (!Number.isSafeInteger(value) || (value as number) < 0) {
      throw this.wrong(name, 'a whole number from 0 to 2^53', value);
    }
    return value as number;
  }

  wrong(name: string, expected: string, got: unknown): CheckpointFormatError {
    const shown = typeof got === 'string' ? got : (JSON.stringify(got) ?? 'nothing');
    return wrong(this.#where, this.#join(name), expected, shown);
  }

  #at(name: string, value: unknown): Fields {
    return new Fields(value, this.#where, this.#join(name));
  }

  #join(name: string): string {
    const isBelow = this.#path !== '' && name !== '' && !name.startsWith('[');
    return `${this.#path}${isBelow ? '.' : ''}${name}`;
  }
}

function wrong(where: string, field: string, expected: string, got: string): CheckpointFormatError {
  const at = field === '' ? '' : ` at ${field}`;
  return new CheckpointFormatError(
    `openSave: expected ${expected}${at} of '${INDEX_FILE}' in ${where}, got ${got}.`,
    { file: INDEX_FILE, field },
  );
}
