// Files as a test writes them byte by byte, so that they can have every value of the format, and
// mistakes that no writer makes.
import { type Gguf, type GgufValue, openGguf, type StoredTensor } from '@shardweave/gguf/read';
import type { ByteSource, ModelFiles } from '@shardweave/nn';

type Bytes = readonly number[];

const little = (byteLength: number) => (value: number | bigint) =>
  Array.from({ length: byteLength }, (_, i) => Number((BigInt(value) >> BigInt(8 * i)) & 255n));
export const u8 = little(1);
export const u16 = little(2);
export const u32 = little(4);
export const u64 = little(8);
export const f32 = (value: number): Bytes => [...new Uint8Array(Float32Array.of(value).buffer)];
export const f64 = (value: number): Bytes => [...new Uint8Array(Float64Array.of(value).buffer)];
export const text = (value: string): Bytes => {
  const bytes = [...new TextEncoder().encode(value)];
  return [...u64(bytes.length), ...bytes];
};
/** A key with its value: the number of the type, then the value's bytes. */
export const pair = (key: string, type: number, ...value: Bytes): Bytes => [
  ...text(key),
  ...u32(type),
  ...value,
];
/** The type number of lists. */
export const LIST = 9;
export const list = (type: number, count: number | bigint, ...values: Bytes): Bytes => [
  ...u32(type),
  ...u64(count),
  ...values,
];

export interface RawTensor {
  readonly name: string;
  /** Innermost first, as the format has them. */
  readonly sizes: readonly (number | bigint)[];
  readonly type?: number;
  readonly offset?: number | bigint;
}

export interface RawFile {
  readonly magic?: Bytes;
  readonly version?: number;
  readonly numTensors?: number | bigint;
  readonly numKeys?: number | bigint;
  readonly pairs?: readonly Bytes[];
  readonly tensors?: readonly RawTensor[];
  readonly alignment?: number;
  /** How many bytes follow the header. */
  readonly dataBytes?: number;
}

/** The bytes of a file whose data are 0, 1, 2, ... */
export function rawGguf(file: RawFile): Uint8Array {
  const { pairs = [], tensors = [], alignment = 32, dataBytes = 64 } = file;
  const header = [
    ...(file.magic ?? new TextEncoder().encode('GGUF')),
    ...u32(file.version ?? 3),
    ...u64(file.numTensors ?? tensors.length),
    ...u64(file.numKeys ?? pairs.length),
    ...pairs.flat(),
    ...tensors.flatMap(({ name, sizes, type = 0, offset = 0 }) => [
      ...text(name),
      ...u32(sizes.length),
      ...sizes.flatMap((size) => u64(size)),
      ...u32(type),
      ...u64(offset),
    ]),
  ];
  const padding = (alignment - (header.length % alignment)) % alignment;
  const data = Array.from({ length: dataBytes }, (_, i) => i);
  return Uint8Array.from([...header, ...new Array<number>(padding).fill(0), ...data]);
}

/** Bytes in memory as a source, with the offsets and lengths of what was read of them. */
export function sourceOf(bytes: Uint8Array): ByteSource & { readonly log: number[][] } {
  const log: number[][] = [];
  return {
    byteLength: bytes.byteLength,
    log,
    read: async (into, { offset }) => {
      log.push([offset, into.byteLength]);
      into.set(bytes.subarray(offset, offset + into.byteLength));
    },
  };
}

/** Files in memory by name. */
export function filesOf(files: Readonly<Record<string, Uint8Array>>): ModelFiles {
  return {
    open: async (name) => (Object.hasOwn(files, name) ? sourceOf(files[name]!) : undefined),
  };
}

const NUMBERS = { u32: u32, i32: u32, f32 } as const;
const TYPE_IDS = { u32: 4, i32: 5, f32: 6, bool: 7, string: 8 } as const;

/** The pairs of metadata in the types that our writer has. */
export function pairsOf(metadata: Gguf['metadata']): Bytes[] {
  return [...metadata].map(([key, { type, value }]) => {
    const name = type.replace('[]', '') as keyof typeof TYPE_IDS;
    const write = (one: unknown): Bytes =>
      name === 'string'
        ? text(one as string)
        : name === 'bool'
          ? u8(Number(one))
          : NUMBERS[name](one as number);
    const id = TYPE_IDS[name];
    return Array.isArray(value)
      ? pair(key, LIST, ...list(id, value.length, ...value.flatMap(write)))
      : pair(key, id, ...write(value));
  });
}

/** A file with other metadata and tensors than an opened one: those that `change` gives. */
export async function changedGguf(
  bytes: Uint8Array,
  change: {
    readonly metadata?: (metadata: Map<string, GgufValue>) => void;
    /** The type number and the bytes in place of a tensor's; undefined leaves the tensor out. */
    readonly tensor?: (
      stored: StoredTensor,
      data: Uint8Array,
    ) => readonly [number, Uint8Array] | undefined;
  },
): Promise<Uint8Array> {
  const { metadata, tensors } = await openGguf(sourceOf(bytes));
  const changed = new Map(metadata);
  change.metadata?.(changed);
  const places: RawTensor[] = [];
  const data: Uint8Array[] = [];
  let offset = 0;
  for (const stored of tensors.values()) {
    const own = await stored.read({ start: 0, byteLength: stored.byteLength });
    const given = change.tensor ? change.tensor(stored, own) : ([0, own] as const);
    if (given === undefined) {
      continue;
    }
    const [type, part] = given;
    places.push({ name: stored.name, sizes: stored.shape.toReversed(), type, offset });
    const aligned = Math.ceil(part.byteLength / 32) * 32;
    data.push(part, new Uint8Array(aligned - part.byteLength));
    offset += aligned;
  }
  const header = rawGguf({ pairs: pairsOf(changed), tensors: places, dataBytes: 0 });
  return Buffer.concat([header, ...data]);
}
