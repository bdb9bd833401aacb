// The values of a header, each with its type. The lists of a vocabulary have hundreds of thousands
// of texts, so a list is passed over first, and made when it is asked for.

import { GgufModelError } from '../errors.js';
import type { HeaderReader } from './header-reader.js';

/** The types of numbers that fit a number. */
type SmallNumber = 'u8' | 'i8' | 'u16' | 'i16' | 'u32' | 'i32' | 'f32' | 'f64';

/** A value of a file's header, with the format's name of its type. */
export type GgufValue =
  | { readonly type: SmallNumber; readonly value: number }
  | { readonly type: 'u64' | 'i64'; readonly value: bigint }
  | { readonly type: 'bool'; readonly value: boolean }
  | { readonly type: 'string'; readonly value: string }
  | { readonly type: `${SmallNumber}[]`; readonly value: readonly number[] }
  | { readonly type: 'u64[]' | 'i64[]'; readonly value: readonly bigint[] }
  | { readonly type: 'bool[]'; readonly value: readonly boolean[] }
  | { readonly type: 'string[]'; readonly value: readonly string[] };

type Name = SmallNumber | 'u64' | 'i64' | 'bool' | 'string' | 'array';

/** The names of types by the format's numbers. */
const NAMES: readonly Name[] = [
  ...(['u8', 'i8', 'u16', 'i16', 'u32', 'i32', 'f32', 'bool', 'string', 'array'] as const),
  ...(['u64', 'i64', 'f64'] as const),
];

interface NumberType {
  readonly byteLength: number;
  readonly read: (view: DataView, at: number) => number | bigint | boolean;
}

const NUMBERS: Readonly<Record<Exclude<Name, 'string' | 'array'>, NumberType>> = {
  u8: { byteLength: 1, read: (view, at) => view.getUint8(at) },
  i8: { byteLength: 1, read: (view, at) => view.getInt8(at) },
  u16: { byteLength: 2, read: (view, at) => view.getUint16(at, true) },
  i16: { byteLength: 2, read: (view, at) => view.getInt16(at, true) },
  u32: { byteLength: 4, read: (view, at) => view.getUint32(at, true) },
  i32: { byteLength: 4, read: (view, at) => view.getInt32(at, true) },
  f32: { byteLength: 4, read: (view, at) => view.getFloat32(at, true) },
  u64: { byteLength: 8, read: (view, at) => view.getBigUint64(at, true) },
  i64: { byteLength: 8, read: (view, at) => view.getBigInt64(at, true) },
  f64: { byteLength: 8, read: (view, at) => view.getFloat64(at, true) },
  bool: { byteLength: 1, read: (view, at) => view.getUint8(at) !== 0 },
};

/**
 * Reads a value with its type.
 * @throws {GgufModelError} for an unknown type, for a list of lists, and for what goes on behind
 * the file's end
 */
export function readValue(header: HeaderReader, key: string): GgufValue {
  const name = readType(header, key);
  if (name === 'array') {
    return readArray(header, key);
  }
  if (name === 'string') {
    return { type: 'string', value: header.string(key) };
  }
  const { byteLength, read } = NUMBERS[name];
  return { type: name, value: header.number(byteLength, read) } as GgufValue;
}

function readType(header: HeaderReader, key: string): Name {
  const { at } = header;
  const id = header.u32(`the type of ${key}`);
  const name = NAMES[id];
  if (name === undefined) {
    throw new GgufModelError(
      `openGguf: expected ${key} to have a type from 0 to ${NAMES.length - 1}, got ${id} at byte ${at}. The file is damaged, or of a later version.`,
    );
  }
  return name;
}

function readArray(header: HeaderReader, key: string): GgufValue {
  const name = readType(header, key);
  const count = header.u64(`the length of ${key}`);
  if (name === 'array') {
    throw new GgufModelError(
      `openGguf: expected ${key} to be a list of numbers or texts, got a list of lists. llama.cpp doesn't read these either.`,
    );
  }
  if (name === 'string') {
    return lazy('string[]', textsIn(header, { key, count }));
  }
  const { byteLength, read } = NUMBERS[name];
  const bytes = header.bytes(count * byteLength, key);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const make = () => Array.from({ length: count }, (_, i) => read(view, i * byteLength));
  return lazy(`${name}[]`, make);
}

/** Passes over texts; what is returned decodes them. */
function textsIn(
  header: HeaderReader,
  { key, count }: { readonly key: string; readonly count: number },
): () => string[] {
  const what = `a text of ${key}`;
  const texts = header.rest();
  for (let i = 0; i < count; i++) {
    header.bytes(header.u64(`the length of ${what}`), what);
  }
  return () => Array.from({ length: count }, () => texts.string(what));
}

/** A list that is made when it is first asked for. */
function lazy(type: string, make: () => readonly unknown[]): GgufValue {
  let made: readonly unknown[] | undefined;
  const list = {
    type,
    get value() {
      made ??= make();
      return made;
    },
  };
  return list as unknown as GgufValue;
}
