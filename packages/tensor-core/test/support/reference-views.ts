// Tests of the reference device's kernels make views out of numbers and read them back by these
// functions.

import type { Backend, View } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { beforeEach, expect } from 'vitest';

/** Returns the functions for the tests of one file. Each test gets a device of its own. */
export function referenceViews() {
  let backend: Backend;
  beforeEach(() => {
    backend = createReferenceBackend();
  });

  function f32(values: readonly number[]): View {
    return upload(Float32Array.from(values), 'f32');
  }

  function i32(values: readonly number[]): View {
    return upload(Int32Array.from(values), 'i32');
  }

  function upload(array: Float32Array | Int32Array, dtype: View['dtype']): View {
    const buffer = backend.alloc(array.byteLength, 'test');
    backend.write(buffer, 0, new Uint8Array(array.buffer));
    return { buffer, byteOffset: 0, dtype, size: array.length };
  }

  function empty(size: number, dtype: View['dtype'] = 'f32'): View {
    return { buffer: backend.alloc(size * 4, 'test'), byteOffset: 0, dtype, size };
  }

  async function values(view: View): Promise<number[]> {
    const bytes = await backend.read(view.buffer, 0, view.buffer.byteLength);
    const { size, dtype } = view;
    if (dtype === 'i32') {
      return Array.from(new Int32Array(bytes.buffer, 0, size));
    }
    if (dtype === 'u32') {
      return Array.from(new Uint32Array(bytes.buffer, 0, size));
    }
    if (dtype === 'f32') {
      return Array.from(new Float32Array(bytes.buffer, 0, size));
    }
    return Array.from(new Uint16Array(bytes.buffer, 0, size)); // These are raw bits.
  }

  async function expectClose(view: View, expected: readonly number[]): Promise<void> {
    const got = await values(view);
    expect(got).toHaveLength(expected.length);
    got.forEach((value, i) => {
      if (Number.isFinite(expected[i]!)) {
        expect(value).toBeCloseTo(expected[i]!, 6);
      } else {
        expect(value).toBe(expected[i]);
      }
    });
  }

  return { device: () => backend, f32, i32, upload, empty, values, expectClose };
}
