// The tests of the CPU device share these views over fresh buffers and random values from a seed.

import type { DType } from '@shardweave/dtypes';
import { byteSize, fromF32Array } from '@shardweave/dtypes';
import type { Backend, View } from '@shardweave/tensor-core';

/**
 * Returns uniform values in [-1, 1), the same for the same seed (a linear congruential generator).
 */
export function randomFloats(size: number, seed: number): Float32Array {
  let state = seed >>> 0;
  const values = new Float32Array(size);
  for (let i = 0; i < size; i++) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    values[i] = state / 2 ** 31 - 1;
  }
  return values;
}

/** Makes a view of its own buffer, filled with `values` or left as it is. */
export function makeView(
  backend: Backend,
  dtype: DType,
  size: number,
  values?: Float32Array | Uint32Array,
): View {
  const buffer = backend.alloc(Math.ceil((size * byteSize(dtype)) / 4) * 4, 'test');
  if (values !== undefined) {
    const elements = values instanceof Float32Array ? fromF32Array(values, dtype) : values;
    const bytes = new Uint8Array(buffer.byteLength);
    bytes.set(new Uint8Array(elements.buffer, elements.byteOffset, elements.byteLength));
    backend.write(buffer, 0, bytes);
  }
  return { buffer, byteOffset: 0, dtype, size };
}

export async function readFloats(backend: Backend, view: View): Promise<Float32Array> {
  const bytes = await backend.read(view.buffer, 0, view.buffer.byteLength);
  return new Float32Array(bytes.buffer, 0, view.size);
}
