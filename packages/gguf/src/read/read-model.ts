// A file's model under the Hub's names: the configuration, and its tensors with rows in the Hub's
// order. Rows only move, so a tensor of blocks can be taken as it is, or as the numbers in it.

import { byteSize, fromF32Array, toF32Array } from '@shardweave/dtypes';
import { decodeBlocks } from '@shardweave/dtypes/blocks';
import {
  type ElementRange,
  type LazyTensor,
  type ModelConfig,
  parseModelConfig,
} from '@shardweave/nn';
import { GgufModelError } from '../errors.js';
import { GGUF_FAMILIES } from '../families.js';
import { movedBy } from '../file-tensor.js';
import { firstOf } from '../model-gguf.js';
import { type TensorPlan, tensorPlans } from '../model-tensors.js';
import { ROPE_FACTORS } from '../rope-factors.js';
import { fileRowsOf, rowPieces } from '../tensor-rows.js';
import {
  type GgufTensorType,
  isBlockType,
  type SourceType,
  storedBytes,
  TYPE_INFO,
} from '../tensor-types.js';
import { ggufConfigText, HEAD } from './config-text.js';
import type { Gguf, StoredTensor } from './open-gguf.js';

/** A tensor of a model, and how its file stores it. */
export interface GgufModelTensor {
  /** The name in the file. */
  readonly name: string;
  readonly type: GgufTensorType;
  /** Its bytes in the file. */
  readonly byteLength: number;
  /** The shape in the model, whatever direction the file has it in. */
  readonly shape: readonly number[];
  /**
   * Reads rows of a matrix, in the model's order and the file's type: the bytes of blocks are only
   * moved. A vector has its numbers in `values`.
   * @throws {GgufModelError} for a matrix that the file has in the other direction (GPT-2's), whose
   * blocks can't be turned: `values` can
   */
  readRows(range: RowRange): Promise<Uint8Array>;
  /**
   * Its numbers, read when they are asked for: floats as they are stored, and blocks in f32, beside
   * the blocks themselves where the file has them in the model's direction.
   */
  readonly values: LazyTensor<SourceType>;
}

/** `count` rows from `first` on. */
export interface RowRange {
  readonly first: number;
  readonly count: number;
}

/** A model out of a file. */
export interface ReadModel {
  readonly config: ModelConfig;
  /** All tensors by their names on the Hub. */
  readonly tensors: ReadonlyMap<string, GgufModelTensor>;
}

/**
 * The model of an opened file. Its tensors' bytes are read when they are asked for.
 * @throws {GgufModelError} for an architecture and for keys that are not supported, and for tensors
 * that are missing, are not the model's, or have other shapes
 * @throws {NnError} for a configuration that can't work
 * @example
 * ```ts
 * import { openGguf, readGgufModel } from '@shardweave/gguf/read';
 * import { type ByteSource, loadStateDict, makeModel } from '@shardweave/nn';
 * import type { Device } from '@shardweave/tensor-core';
 *
 * async function modelOf(source: ByteSource, device: Device) {
 *   const { config, tensors } = await readGgufModel(await openGguf(source));
 *   const model = makeModel(device, config, { deferInit: true });
 *   await loadStateDict(model, new Map([...tensors].map(([name, { values }]) => [name, values])));
 *   return model;
 * }
 * ```
 */
export async function readGgufModel(gguf: Gguf): Promise<ReadModel> {
  const config = parseModelConfig(await ggufConfigText(gguf));
  const plans = tensorPlans(config);
  checkNames(gguf, { config, plans });
  const entries = plans.map((plan) => {
    return [plan.source, modelTensor(plan, gguf.tensors.get(plan.name)!)] as const;
  });
  if (config.model_type === 'gpt2') {
    await requireTiedHead(gguf);
  }
  return { config, tensors: new Map(entries) };
}

function checkNames(
  { tensors }: Gguf,
  { config, plans }: { readonly config: ModelConfig; readonly plans: readonly TensorPlan[] },
): void {
  const { model_type: family } = config;
  const { isGeneral } = GGUF_FAMILIES[family];
  const beside = isGeneral ? ROPE_FACTORS : family === 'gpt2' ? HEAD : undefined;
  const planned = new Set(plans.map(({ name }) => name));
  const missing = [...planned].filter((name) => !tensors.has(name));
  const strange = [...tensors.keys()].filter((name) => !planned.has(name) && name !== beside);
  if (missing.length + strange.length > 0) {
    const found = strange.length === 0 ? '' : ` It has others: ${firstOf(strange)}.`;
    throw new GgufModelError(
      `expected the tensors of a ${family} as the metadata has it${missing.length === 0 ? '' : `, got none of ${firstOf(missing)}`}.${found}`,
    );
  }
}

/** How much of two tables is compared at a time. */
const COMPARED_BYTES = 2 ** 22;

/** Some files of GPT-2 have the token table a second time, as a head. */
async function requireTiedHead({ tensors }: Gguf): Promise<void> {
  const head = tensors.get(HEAD);
  if (head === undefined) {
    return;
  }
  const table = tensors.get('token_embd.weight')!;
  let isSame = head.type === table.type && head.shape.join() === table.shape.join();
  for (let start = 0; isSame && start < table.byteLength; start += COMPARED_BYTES) {
    const range = { start, byteLength: Math.min(COMPARED_BYTES, table.byteLength - start) };
    const [own, other] = [await head.read(range), await table.read(range)];
    isSame = own.every((byte, i) => byte === other[i]);
  }
  if (!isSame) {
    throw new GgufModelError(
      `expected '${HEAD}' to be the token table of a gpt2, got ${head.type} beside ${table.type}, or other numbers. Take a file whose head is not stored apart, or in f32, f16 or bf16.`,
    );
  }
}

function modelTensor(plan: TensorPlan, stored: StoredTensor): GgufModelTensor {
  const { name, type } = stored;
  const { columns, isTransposed = false } = plan.rows;
  if (stored.shape.join() !== plan.shape.join()) {
    throw new GgufModelError(
      `'${name}': expected [${plan.shape.join(', ')}] as the metadata has it, got [${stored.shape.join(', ')}].`,
    );
  }
  if (columns % TYPE_INFO[type].blockElements !== 0) {
    throw new GgufModelError(`'${name}': expected a vector in f32, f16 or bf16, got ${type}.`);
  }
  const rowBytes = storedBytes(type, columns);
  const readRows = rowReader(plan, { stored, rowBytes });
  return {
    name,
    type,
    byteLength: stored.byteLength,
    shape: isTransposed ? plan.shape.toReversed() : plan.shape,
    readRows: isTransposed ? turnedRows(plan, stored) : readRows,
    values: isTransposed
      ? turnedValues(plan, stored)
      : plan.offset === 0
        ? values(plan, { stored, readRows })
        : movedValues(plan, stored),
  };
}

type ReadRows = GgufModelTensor['readRows'];

/**
 * Reads rows of the model's order. Those of one head lie close together in the file, so they are
 * read in one go with those between them.
 */
function rowReader(
  plan: TensorPlan,
  { stored, rowBytes }: { readonly stored: StoredTensor; readonly rowBytes: number },
): ReadRows {
  const { rowAt } = plan.rows;
  const read = ({ first, count }: RowRange) =>
    stored.read({ start: first * rowBytes, byteLength: count * rowBytes });
  if (rowAt === undefined) {
    return read;
  }
  let fileRows: Uint32Array | undefined;
  return async ({ first, count }) => {
    fileRows ??= fileRowsOf({ ...plan.rows, rowAt });
    const wanted = fileRows.subarray(first, first + count);
    const least = wanted.reduce((a, b) => Math.min(a, b), fileRows.length);
    const most = wanted.reduce((a, b) => Math.max(a, b), least - 1);
    const span = await read({ first: least, count: most + 1 - least });
    const rows = new Uint8Array(count * rowBytes);
    for (const [i, row] of wanted.entries()) {
      const from = (row - least) * rowBytes;
      rows.set(span.subarray(from, from + rowBytes), i * rowBytes);
    }
    return rows;
  };
}

/** The numbers of a vector from which the file's differ, in f32. */
function movedValues(plan: TensorPlan, stored: StoredTensor): LazyTensor<SourceType> {
  const { type, byteLength } = stored;
  const dtype = isBlockType(type) ? 'f32' : type;
  const read = async () => {
    const numbers = toF32Array(decoded(type, await stored.read({ start: 0, byteLength })), dtype);
    return fromF32Array(movedBy(numbers, -plan.offset), 'f32');
  };
  return { dtype: 'f32', shape: plan.shape, read };
}

/** The numbers of a tensor that the file has in the model's direction. */
function values(
  plan: TensorPlan,
  { stored, readRows }: { readonly stored: StoredTensor; readonly readRows: ReadRows },
): LazyTensor<SourceType> {
  const { type } = stored;
  const { rows, columns, rowAt } = plan.rows;
  const dtype = isBlockType(type) ? 'f32' : type;
  // A part is read in whole rows where rows move, else in whole blocks.
  const unit = rowAt === undefined ? TYPE_INFO[type].blockElements : columns;
  const unitBytes = storedBytes(type, unit);
  const readUnits = (first: number, count: number) =>
    rowAt === undefined
      ? stored.read({ start: first * unitBytes, byteLength: count * unitBytes })
      : readRows({ first, count });
  const readPart = async ({ first, count }: ElementRange) => {
    const [from, to] = [Math.floor(first / unit), Math.ceil((first + count) / unit)];
    const size = byteSize(dtype);
    const at = (first - from * unit) * size;
    return decoded(type, await readUnits(from, to - from)).subarray(at, at + count * size);
  };
  const read = () => readPart({ first: 0, count: rows * columns });
  const numbers = { dtype, shape: plan.shape, read, readPart };
  if (!isBlockType(type)) {
    return numbers;
  }
  const rowBytes = storedBytes(type, columns);
  return { ...numbers, blocks: { type, words: wordsOf({ rows, rowBytes, readRows }) } };
}

/** The bytes of a matrix in blocks as words; the last one is filled up with zeros. */
function wordsOf({
  rows,
  rowBytes,
  readRows,
}: {
  readonly rows: number;
  readonly rowBytes: number;
  readonly readRows: ReadRows;
}): LazyTensor<'u32'> {
  const count = Math.ceil((rows * rowBytes) / 4);
  const readPart = async (part: ElementRange) => {
    const words = new Uint8Array(part.count * 4);
    const [start, end] = [part.first * 4, (part.first + part.count) * 4];
    const first = Math.floor(start / rowBytes);
    const last = Math.min(rows, Math.ceil(end / rowBytes));
    const bytes = await readRows({ first, count: last - first });
    words.set(bytes.subarray(start - first * rowBytes, end - first * rowBytes));
    return words;
  };
  return { dtype: 'u32', shape: [count], read: () => readPart({ first: 0, count }), readPart };
}

/** The numbers of a matrix that the file has in the other direction, which is read as a whole. */
function turnedValues(plan: TensorPlan, stored: StoredTensor): LazyTensor<SourceType> {
  const { type, byteLength } = stored;
  const { rows, columns } = plan.rows;
  const dtype = isBlockType(type) ? 'f32' : type;
  const read = async () => {
    const data = decoded(type, await stored.read({ start: 0, byteLength }));
    const turned = new Uint8Array(data.byteLength);
    let at = 0;
    const turn = { rows: columns, columns: rows, isTransposed: true };
    for (const piece of rowPieces(data, { plan: turn, type: dtype })) {
      turned.set(piece, at);
      at += piece.byteLength;
    }
    return turned;
  };
  return { dtype, shape: plan.shape.toReversed(), read };
}

function turnedRows(plan: TensorPlan, stored: StoredTensor): ReadRows {
  const { name, type } = stored;
  const { read } = turnedValues(plan, stored);
  return async ({ first, count }) => {
    if (isBlockType(type)) {
      throw new GgufModelError(
        `'${name}': expected f32, f16 or bf16 to read its rows, which are columns in the file, got ${type}. Read its values, which are turned after they are decoded.`,
      );
    }
    const rowBytes = plan.rows.rows * byteSize(type);
    return (await read()).subarray(first * rowBytes, (first + count) * rowBytes);
  };
}

/** Floats as they are; blocks as f32. */
function decoded(type: GgufTensorType, bytes: Uint8Array): Uint8Array {
  if (!isBlockType(type)) {
    return bytes;
  }
  const { blockElements, blockBytes } = TYPE_INFO[type];
  const numbers = new Float32Array((bytes.byteLength / blockBytes) * blockElements);
  decodeBlocks(type, bytes, numbers);
  return new Uint8Array(numbers.buffer);
}
