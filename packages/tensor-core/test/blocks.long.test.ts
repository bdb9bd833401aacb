// A million random blocks of each type, decoded on each device to the bits of
// @shardweave/dtypes/blocks, which blocks.long.test.ts there holds against ggml's own library.

import { fromF32Array } from '@shardweave/dtypes';
import { BLOCK_SIZES, BLOCK_TYPES, type BlockType, decodeBlocks } from '@shardweave/dtypes/blocks';
import type { Backend } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { createWebGpuBackend } from '@shardweave/tensor-core/webgpu';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { randomBlocks } from '../../../tooling/test-kit/random-blocks.ts';
import { noSwiftShader, openSwiftShader } from '../../../tooling/test-kit/swift-shader.ts';
import { open, reason, title } from './support/webgpu-kit.js';

const BLOCKS = 1e6;
/** Into 16 bits, whose rounding is that of other kernels. */
const BLOCKS_16 = 1e5;
/** The numbers of so many blocks of 256 have 51 MB in f32. */
const PIECE = 50_000;
const BLOCKS_IN_ROW = 4;
/** A type took 131 s on SwiftShader beside other work on two cores. */
const TIMEOUT_MS = 600_000;

const DEVICES = [
  { name: 'cpu', why: undefined, make: () => createCpuBackend({ threads: 2 }) },
  { name: 'webgpu', why: reason, make: () => open() },
  {
    name: 'SwiftShader',
    why: reason ?? noSwiftShader,
    make: async () => createWebGpuBackend({ gpu: await openSwiftShader() }),
  },
] as const;

/** The bytes of the numbers of blocks as a device decodes them. */
async function decodedBytes(
  backend: Backend,
  bytes: Uint8Array,
  { type, dtype }: { readonly type: BlockType; readonly dtype: 'f32' | 'f16' | 'bf16' },
): Promise<Uint8Array> {
  const width = BLOCKS_IN_ROW * BLOCK_SIZES[type].elements;
  const rows = PIECE / BLOCKS_IN_ROW;
  const size = rows * width;
  const padded = new Uint8Array(Math.ceil(bytes.byteLength / 4) * 4);
  padded.set(bytes);
  const outBytes = size * (dtype === 'f32' ? 4 : 2);
  const [from, to] = [padded.byteLength, outBytes].map((count) => backend.alloc(count, 'test'));
  backend.write(from!, 0, padded);
  backend.run('decodeBlocks', {
    words: { buffer: from!, byteOffset: 0, dtype: 'u32', size: padded.byteLength / 4 },
    out: { buffer: to!, byteOffset: 0, dtype, size },
    ...{ ids: undefined, type, rows, width },
    ...{ firstRow: 0, count: rows, firstColumn: 0, columns: width },
  });
  const found = await backend.read(to!, 0, outBytes);
  backend.free(from!);
  backend.free(to!);
  return found;
}

describe.each(DEVICES)("ggml's blocks on $name", ({ name, why, make }) => {
  let backend: Backend;
  beforeAll(async () => {
    if (why === undefined) {
      backend = await make();
    }
  });
  afterAll(() => backend?.dispose());

  const cells = BLOCK_TYPES.flatMap((type) =>
    (['f32', 'f16', 'bf16'] as const).map((dtype) => ({ type, dtype })),
  );
  it.skipIf(why !== undefined).each(cells)(
    title('$type to $dtype, the same bits', why),
    { timeout: TIMEOUT_MS },
    async (cell) => {
      const { type, dtype } = cell;
      for (let first = 0; first < (dtype === 'f32' ? BLOCKS : BLOCKS_16); first += PIECE) {
        const bytes = randomBlocks(type, PIECE, first + 1);
        const numbers = new Float32Array(PIECE * BLOCK_SIZES[type].elements);
        decodeBlocks(type, bytes, numbers);
        const expected = fromF32Array(numbers, dtype);
        const found = await decodedBytes(backend, bytes, cell);
        const isSame = Buffer.from(found.buffer, found.byteOffset, found.byteLength).equals(
          expected,
        );
        expect(isSame, `${name}: blocks from ${first} on`).toBe(true);
      }
    },
  );
});
