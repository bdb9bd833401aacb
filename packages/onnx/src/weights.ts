// The weights of a model as constants of a graph: checked at once, and read and converted when
// their turn comes. Matrices are turned, because ONNX multiplies [in, out] where the Hub has
// [out, in]; those in 8 bits stay as they are.

import { fromF32Array, toF32Array } from '@shardweave/dtypes';
import type { HostTensor, LazyTensor } from '@shardweave/nn';
import { OnnxModelError } from './errors.js';
import type { OnnxTensor, OnnxType } from './onnx-graph.js';
import { quantizedScales, quantizedWords } from './quantize.js';

/** The type in which a file has its floats. */
export type FloatType = 'f32' | 'f16';

/** The tensors of a model by name, as a file of the Hub or another program has them. */
export type ModelState = ReadonlyMap<string, HostTensor | LazyTensor>;

/** A tensor of whole numbers, and how they become floats again. */
export interface QuantizedWeight {
  readonly words: OnnxTensor;
  readonly scales: OnnxTensor;
}

interface Source {
  readonly name: string;
  readonly shape: readonly number[];
  readonly tensor: HostTensor | LazyTensor;
}

/** About how many elements are converted at a time. */
const PIECE_ELEMENTS = 2 ** 20;
const BYTES: Readonly<Record<OnnxType, number>> = { f32: 4, f16: 2, u8: 1, i64: 8 };
/**
 * Numbers below this round to the largest f16 or less; this one and those above round to infinity.
 */
const F16_BELOW = 65_520;

export class ModelWeights {
  readonly #state: ModelState;
  readonly #floatType: FloatType;
  readonly #used = new Set<string>();
  readonly #missing: string[] = [];

  constructor(state: ModelState, floatType: FloatType) {
    this.#state = state;
    this.#floatType = floatType;
  }

  /** The names that were asked for and are not there. */
  get missing(): readonly string[] {
    return this.#missing;
  }

  /** The names that are there and were not asked for. */
  get unused(): readonly string[] {
    return [...this.#state.keys()].filter((name) => !this.#used.has(name));
  }

  /** A tensor as the model has it. */
  plain(name: string, shape: readonly number[]): OnnxTensor {
    const source = this.#source(name, shape);
    const type = this.#floatType;
    return constant({ name, type, shape }, () => floatPieces(source, type));
  }

  /** A matrix [out, in] as [in, out]. */
  transposed(name: string, shape: readonly [out: number, inner: number]): OnnxTensor {
    const source = this.#source(name, shape);
    const type = this.#floatType;
    return constant({ name, type, shape: shape.toReversed() }, () => turnedPieces(source, type));
  }

  /** A matrix in 8 bits, `block` numbers of a row sharing a scale; see quantize.ts. */
  quantized(
    name: string,
    shape: readonly [rows: number, columns: number],
    block: number,
  ): QuantizedWeight {
    const source = this.#source(name, shape);
    const [rows, columns] = shape;
    const blocks = Math.ceil(columns / block);
    const parts = async function* (
      encode: (values: Float32Array, sizes: { columns: number; block: number }) => Uint8Array,
    ) {
      for await (const values of rowPieces(source)) {
        requireFinite(values, name);
        yield encode(values, { columns, block });
      }
    };
    return {
      words: constant({ name: `${name}_words`, type: 'u8', shape: [rows, blocks, block] }, () =>
        parts(quantizedWords),
      ),
      scales: constant({ name: `${name}_scales`, type: 'f32', shape: [rows, blocks] }, () =>
        parts(quantizedScales),
      ),
    };
  }

  #source(name: string, shape: readonly number[]): Source {
    this.#used.add(name);
    const tensor = this.#state.get(name);
    if (tensor === undefined) {
      this.#missing.push(name);
      return { name, shape, tensor: { dtype: 'f32', shape, data: new Uint8Array(0) } };
    }
    if (tensor.shape.join() !== shape.join()) {
      throw new OnnxModelError(
        `onnxModel: expected '${name}' [${shape.join(', ')}], got [${tensor.shape.join(', ')}].`,
      );
    }
    const { dtype } = tensor;
    if (dtype !== 'f32' && dtype !== 'f16' && dtype !== 'bf16') {
      throw new OnnxModelError(
        `onnxModel: expected '${name}' in f32, f16 or bf16, got ${dtype}. Others are not read.`,
      );
    }
    return { name, shape, tensor };
  }
}

/** A small constant of floats. */
export function floats(
  name: string,
  values: readonly number[],
  { type, shape = [] }: { readonly type: FloatType; readonly shape?: readonly number[] },
): OnnxTensor {
  return constant({ name, type, shape }, () => [fromF32Array(values, type)]);
}

/** A small constant of whole numbers, a vector of them or one alone. */
export function integers(name: string, values: readonly number[] | number): OnnxTensor {
  const all = typeof values === 'number' ? [values] : values;
  const shape = typeof values === 'number' ? [] : [all.length];
  const bytes = new Uint8Array(BigInt64Array.from(all, BigInt).buffer);
  return constant({ name, type: 'i64', shape }, () => [bytes]);
}

function constant(
  value: Pick<OnnxTensor, 'name' | 'type' | 'shape'>,
  pieces: OnnxTensor['pieces'],
): OnnxTensor {
  const byteLength = value.shape.reduce((product, size) => product * size, BYTES[value.type]);
  return { ...value, byteLength, pieces };
}

async function* floatPieces(source: Source, type: FloatType): AsyncGenerator<Uint8Array> {
  for await (const values of rowPieces(source)) {
    yield encoded(values, { name: source.name, type });
  }
}

/** The values of a source, some whole rows at a time. */
async function* rowPieces({ tensor, shape }: Source): AsyncGenerator<Float32Array> {
  const data = await bytesOf(tensor);
  const rowBytes = data.byteLength / shape[0]!;
  const step = rowsOfPiece(shape[0]!, shape) * rowBytes;
  for (let first = 0; first < data.byteLength; first += step) {
    yield toF32Array(data.subarray(first, first + step), tensor.dtype as FloatType);
  }
}

function rowsOfPiece(rows: number, shape: readonly number[]): number {
  const columns = shape.reduce((product, size) => product * size, 1) / rows;
  return Math.max(1, Math.floor(PIECE_ELEMENTS / columns));
}

async function* turnedPieces(source: Source, type: FloatType): AsyncGenerator<Uint8Array> {
  const { name, tensor } = source;
  const [rows, columns] = source.shape as [number, number];
  const values = toF32Array(await bytesOf(tensor), tensor.dtype as FloatType);
  const step = rowsOfPiece(columns, source.shape);
  for (let first = 0; first < columns; first += step) {
    const count = Math.min(step, columns - first);
    const piece = new Float32Array(count * rows);
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < count; column++) {
        piece[column * rows + row] = values[row * columns + first + column]!;
      }
    }
    yield encoded(piece, { name, type });
  }
}

function bytesOf(tensor: HostTensor | LazyTensor): Promise<Uint8Array> | Uint8Array {
  return 'data' in tensor ? tensor.data : tensor.read();
}

/** @throws {OnnxModelError} for a number that would take all others of its block with it */
function requireFinite(values: Float32Array, name: string): void {
  const strange = values.find((value) => !Number.isFinite(value));
  if (strange !== undefined) {
    throw new OnnxModelError(
      `${name}: expected finite numbers for q8, got ${strange}. Such a model answers with nothing.`,
    );
  }
}

function encoded(
  values: Float32Array,
  { name, type }: { readonly name: string; readonly type: FloatType },
): Uint8Array {
  const outside =
    type === 'f16' ? values.find((value) => !(Math.abs(value) < F16_BELOW)) : undefined;
  if (outside !== undefined) {
    throw new OnnxModelError(
      `${name}: expected numbers below ${F16_BELOW}, as f16 holds them, got ${outside}. Write it as f32 or q8.`,
    );
  }
  return fromF32Array(values, type);
}
