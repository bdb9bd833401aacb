// Turns a tensor of a model into one of the file: the order of its rows, and its type.

import { fromF32Array, toF32Array } from '@shardweave/dtypes';
import type { HostTensor, LazyTensor } from '@shardweave/nn';
import { GgufModelError } from './errors.js';
import type { GgufTensor } from './gguf-file.js';
import type { TensorPlan } from './model-tensors.js';
import { rowPieces } from './tensor-rows.js';
import { encode, type GgufTensorType, type SourceType } from './tensor-types.js';

/**
 * The tensor of the file that a plan describes, read and encoded when its turn comes.
 * @param options.call the name of the function that was called, for its errors
 * @throws {GgufModelError} for a source of another shape, or not in f32, f16 or bf16
 */
export function fileTensor(
  plan: TensorPlan,
  options: {
    readonly tensor: HostTensor | LazyTensor;
    /** The type in the file. */
    readonly type: GgufTensorType;
    readonly call: string;
  },
): GgufTensor {
  const { tensor, type, call } = options;
  const { name, source, shape, rows } = plan;
  const { dtype } = tensor;
  const expected = rows.isTransposed === true ? shape.toReversed() : shape;
  if (tensor.shape.join() !== expected.join()) {
    throw new GgufModelError(
      `${call}: expected '${source}' [${expected.join(', ')}], got [${tensor.shape.join(', ')}].`,
    );
  }
  if (dtype !== 'f32' && dtype !== 'f16' && dtype !== 'bf16') {
    throw new GgufModelError(
      `${call}: expected '${source}' in f32, f16 or bf16, got ${dtype}. Others are not read.`,
    );
  }
  return {
    name,
    type,
    shape,
    pieces: () => encodedPieces(tensor, { plan, from: dtype, to: type }),
  };
}

async function* encodedPieces(
  tensor: HostTensor | LazyTensor,
  options: { readonly plan: TensorPlan; readonly from: SourceType; readonly to: GgufTensorType },
): AsyncGenerator<Uint8Array, void, undefined> {
  const { plan, from, to } = options;
  const data = 'data' in tensor ? tensor.data : await tensor.read();
  if (plan.offset !== 0) {
    const moved = fromF32Array(movedBy(toF32Array(data, from), plan.offset), 'f32');
    yield encode(moved, { name: plan.source, from: 'f32', to });
    return;
  }
  for (const piece of rowPieces(data, { plan: plan.rows, type: from })) {
    yield encode(piece, { name: plan.source, from, to });
  }
}

/** The numbers with another one added to each, in f32. */
export function movedBy(numbers: Float32Array, offset: number): Float32Array<ArrayBuffer> {
  return Float32Array.from(numbers, (number) => number + offset);
}
