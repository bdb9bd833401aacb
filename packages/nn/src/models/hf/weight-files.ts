// Weights in the Hub's layout, of any model: one model.safetensors, or several files that an index
// lists. They are read by ranges and written in pieces, so that one tensor at a time is in memory.
// The caller reads and writes the files, since this also runs in browsers.

import { fromF32Array, isFloat, toF32Array } from '@shardweave/dtypes';
import { elementCountOf } from '@shardweave/tensor-core';
import { checkOptions, oneOf, optional, whole } from '../../check-options.js';
import { FormatError } from '../../errors.js';
import { type HostTensor, isDeviceDType, type LazyTensor } from '../../host-tensor.js';
import type { WeightsDType } from './config-text.js';
import {
  type ByteSource,
  openSafetensors,
  safetensorsByteLength,
  safetensorsPieces,
} from './safetensors.js';
import { byteLengthOf } from './safetensors-header.js';

const WEIGHTS = 'model.safetensors';
const INDEX = 'model.safetensors.index.json';
const CONFIG = 'config.json';
/**
 * The size at which transformers begins a new file. The Hub refuses files of ten times this size.
 */
const MAX_FILE_BYTES = 5e9;
/**
 * An index names each tensor once. That of a thousand layers with a hundred tensors each would be a
 * tenth of this limit.
 */
const MAX_TEXT_BYTES = 64 * 2 ** 20;

/**
 * Access to a model's files by name, wherever they are: in a directory, on a server, or chosen in a
 * browser.
 */
export interface ModelFiles {
  /** Opens a file for reading by ranges. The result is undefined where there is no such file. */
  open(name: string): Promise<ByteSource | undefined>;
}

/**
 * Opens a model's weights as its files name them. The headers and the index are read now, and each
 * tensor when it is asked for.
 * @throws {FormatError} for a file that is missing, malformed or cut off, and for a tensor that its
 * file lacks although the index lists it
 */
export async function openWeights(files: ModelFiles): Promise<ReadonlyMap<string, LazyTensor>> {
  const whole = await files.open(WEIGHTS);
  return whole === undefined ? openShards(files) : openFile(WEIGHTS, whole);
}

async function openShards(files: ModelFiles): Promise<Map<string, LazyTensor>> {
  const index = await files.open(INDEX);
  if (index === undefined) {
    throw new FormatError(`expected ${WEIGHTS} or ${INDEX}, got neither.`);
  }
  const places = await readIndex(index);
  const shards = new Map<string, ReadonlyMap<string, LazyTensor>>();
  for (const file of new Set(places.values())) {
    const source = await files.open(file);
    if (source === undefined) {
      throw new FormatError(`${INDEX}: expected ${file} beside it, got no such file.`);
    }
    shards.set(file, await openFile(file, source));
  }
  const tensors = new Map<string, LazyTensor>();
  for (const [name, file] of places) {
    const tensor = shards.get(file)!.get(name);
    if (tensor === undefined) {
      throw new FormatError(`${INDEX}: expected '${name}' in ${file}, which does not have it.`);
    }
    tensors.set(name, tensor);
  }
  return tensors;
}

async function openFile(
  name: string,
  source: ByteSource,
): Promise<ReadonlyMap<string, LazyTensor>> {
  try {
    return (await openSafetensors(source)).tensors;
  } catch (error) {
    if (error instanceof FormatError) {
      throw new FormatError(`${name}: ${error.message}`, { cause: error });
    }
    throw error;
  }
}

/** Reads the index, which says in which file each tensor is. */
async function readIndex(source: ByteSource): Promise<Map<string, string>> {
  const json = await readText(INDEX, source);
  let map: unknown;
  try {
    map = (JSON.parse(json) as { weight_map?: unknown } | null)?.weight_map;
  } catch (error) {
    throw new FormatError(`${INDEX}: expected JSON.`, { cause: error });
  }
  if (typeof map !== 'object' || map === null || Array.isArray(map)) {
    throw new FormatError(`${INDEX}: expected weight_map, the file of each tensor.`);
  }
  for (const [name, file] of Object.entries(map)) {
    // A name with a slash could lead out of the directory.
    if (typeof file !== 'string' || /[/\\]/.test(file) || !file.endsWith('.safetensors')) {
      throw new FormatError(
        `${INDEX}: expected a .safetensors beside it for '${name}', got ${JSON.stringify(file)}.`,
      );
    }
  }
  return new Map(Object.entries(map as Record<string, string>));
}

/**
 * The text of the config.json beside a model's weights.
 * @throws {FormatError} where there is none
 */
export async function readConfig(files: ModelFiles): Promise<string> {
  const source = await files.open(CONFIG);
  if (source === undefined) {
    throw new FormatError(`expected ${CONFIG} beside the weights, got no such file.`);
  }
  return readText(CONFIG, source);
}

/** Reads a whole file of text. */
async function readText(name: string, source: ByteSource): Promise<string> {
  if (source.byteLength > MAX_TEXT_BYTES) {
    throw new FormatError(
      `${name}: expected at most ${MAX_TEXT_BYTES} bytes, got ${source.byteLength}.`,
    );
  }
  const bytes = new Uint8Array(source.byteLength);
  await source.read(bytes, { offset: 0 });
  return new TextDecoder().decode(bytes);
}

/** A file to write. */
export interface ModelFile {
  readonly name: string;
  /** The bytes of all its pieces. */
  readonly byteLength: number;
  /**
   * Its bytes in order. No piece of a tensor has more than 64 MiB. Call it again to begin again,
   * after a failure for example.
   */
  pieces(): AsyncIterable<Uint8Array> | Iterable<Uint8Array>;
}

/** Options of writing a model's weights in the Hub's layout. */
export interface ModelFileOptions {
  /** The dtype in which floats are written; 'kept': each tensor's own. Default 'f32'. */
  readonly dtype?: WeightsDType | 'kept';
  /**
   * The bytes of tensors above which another file begins. A tensor is never cut, so a larger one
   * has a file of its own. Default 5e9.
   */
  readonly maxFileBytes?: number;
}

/**
 * The files of a model in the order in which to write them, with the config.json that `configText`
 * makes for the dtype of most weights.
 */
export function filesOf(
  operation: string,
  state: Tensors,
  {
    configText,
    ...options
  }: ModelFileOptions & { readonly configText: (dtype: WeightsDType) => string },
): readonly ModelFile[] {
  checkOptions<ModelFileOptions>(operation, options, {
    dtype: optional(oneOf('f32', 'bf16', 'f16', 'kept')),
    maxFileBytes: optional(whole(1)),
  });
  const { dtype = 'f32', maxFileBytes = MAX_FILE_BYTES } = options;
  const converted = [...state].map(
    ([name, tensor]) => [name, dtype === 'kept' ? tensor : inDType(tensor, dtype)] as const,
  );
  const shards = splitTensors(converted, maxFileBytes);
  const metadata = { format: 'pt' };
  const weights = shards.map((tensors, i) => {
    return {
      name: shards.length === 1 ? WEIGHTS : shardName(i, shards.length),
      byteLength: safetensorsByteLength(tensors, { metadata }),
      pieces: () => safetensorsPieces(tensors, { metadata }),
      tensors,
    };
  });
  const text = (name: string, value: string): ModelFile => {
    const bytes = new TextEncoder().encode(value);
    return { name, byteLength: bytes.byteLength, pieces: () => [bytes] };
  };
  const index = shards.length === 1 ? [] : [text(INDEX, indexText(weights))];
  return [
    ...weights.map(({ name, byteLength, pieces }) => ({ name, byteLength, pieces })),
    ...index,
    text(CONFIG, configText(dtype === 'kept' ? mostDType(state) : dtype)),
  ];
}

/** Whether a file name is one that modelFiles gives to weights or to their index. */
export function isWeightsFile(name: string): boolean {
  return name === WEIGHTS || name === INDEX || /^model-\d{5}-of-\d{5}\.safetensors$/.test(name);
}

type Tensors = ReadonlyMap<string, HostTensor | LazyTensor>;

/** Splits the tensors into runs of consecutive ones, each with as many as fit and at least one. */
function splitTensors(
  tensors: readonly (readonly [string, HostTensor | LazyTensor])[],
  maxBytes: number,
): Tensors[] {
  const shards: Map<string, HostTensor | LazyTensor>[] = [new Map()];
  let bytes = 0;
  for (const [name, tensor] of tensors) {
    const byteLength = byteLengthOf(tensor);
    if (bytes > 0 && bytes + byteLength > maxBytes) {
      shards.push(new Map());
      bytes = 0;
    }
    shards.at(-1)!.set(name, tensor);
    bytes += byteLength;
  }
  return shards;
}

function shardName(index: number, count: number): string {
  const digits = (value: number) => String(value).padStart(5, '0');
  return `model-${digits(index + 1)}-of-${digits(count)}.safetensors`;
}

function indexText(files: readonly { readonly name: string; readonly tensors: Tensors }[]): string {
  const placed = files.flatMap(({ name, tensors }) =>
    [...tensors].map(([key, tensor]) => [key, name, byteLengthOf(tensor)] as const),
  );
  const index = {
    metadata: { total_size: placed.reduce((sum, [, , bytes]) => sum + bytes, 0) },
    weight_map: Object.fromEntries(placed.map(([key, name]) => [key, name])),
  };
  return `${JSON.stringify(index, undefined, 2)}\n`;
}

/** The dtype that most weights have; a config can name one alone. */
function mostDType(state: Tensors): WeightsDType {
  const counts = { f32: 0, bf16: 0, f16: 0 };
  for (const { dtype, shape } of state.values()) {
    if (Object.hasOwn(counts, dtype)) {
      counts[dtype as WeightsDType] += elementCountOf(shape);
    }
  }
  const [[most]] = Object.entries(counts).sort(([, a], [, b]) => b - a) as [[WeightsDType, number]];
  return most;
}

/** The tensor itself, or one that converts its floats when it is read. */
function inDType(tensor: HostTensor | LazyTensor, dtype: WeightsDType): HostTensor | LazyTensor {
  const { dtype: from, shape } = tensor;
  if (from === dtype || !isDeviceDType(from) || !isFloat(from)) {
    return tensor;
  }
  const convert = (bytes: Uint8Array) => fromF32Array(toF32Array(bytes, from), dtype);
  if ('data' in tensor) {
    return { dtype, shape, read: async () => convert(tensor.data) };
  }
  const { readPart } = tensor;
  return {
    dtype,
    shape,
    read: async () => convert(await tensor.read()),
    ...(readPart && { readPart: async (part) => convert(await readPart(part)) }),
  };
}
