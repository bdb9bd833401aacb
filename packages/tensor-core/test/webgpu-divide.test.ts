// Beyond 2^24 an f32 no longer holds every integer. These tests check index arithmetic there: the
// function of the shaders by which all strided kernels divide, over indices up to 2^31, and a copy
// of more elements than that.

import type { View } from '@shardweave/tensor-core';
import type { WebGpuBackend } from '@shardweave/tensor-core/webgpu';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { INTEGER_DIVIDE } from '../src/backends/webgpu/kernel/wgsl.js';
import { open, reason, title, webGpu } from './support/webgpu-kit.js';

/** The table gradient of GPT-2 has 38.6 million elements. */
const MANY = 39_000_003;

describe.skipIf(reason !== undefined)(title('webgpu device, index arithmetic'), () => {
  let backend: WebGpuBackend;
  beforeAll(async () => {
    backend = await open();
  });
  afterAll(() => backend.dispose());

  test('quotients are exact for indices up to 2^31 and all kinds of divisors', async () => {
    const divisors = [1, 2, 3, 5, 7, 9, 10, 64, 127, 768, 1000, 4097, 50_257, 65_537, 2 ** 24 + 1];
    const indices = divisors.flatMap((d) =>
      [2 ** 12, 2 ** 24, 2 ** 25, 2 ** 27, 2 ** 29, 2 ** 31 - 1].flatMap((top) => {
        const multiple = Math.floor(top / d) * d;
        const spread = Array.from({ length: 40 }, (_, i) => Math.floor((top * (i + 1)) / 41));
        return [multiple, multiple - 1, multiple + 1, top, ...spread]
          .filter((i) => i >= 0 && i < 2 ** 31)
          .map((i) => [i, d] as const);
      }),
    );
    const quotients = await divide(indices);
    const wrong = indices
      .map(([i, d], at) => ({ i, d, got: quotients[at], want: Math.floor(i / d) }))
      .filter(({ got, want }) => got !== want);
    expect(wrong).toEqual([]);
  });

  test('a strided copy of 39 million elements is right to its end', async () => {
    const small = backend.alloc(8, 'row');
    const large = backend.alloc(Math.ceil((2 * MANY) / 4) * 4, 'rows');
    backend.write(small, 0, new Uint8Array(Uint16Array.of(11, 22, 33, 0).buffer));
    const x: View = { buffer: small, byteOffset: 0, dtype: 'f16', size: 3 };
    const out: View = { buffer: large, byteOffset: 0, dtype: 'f16', size: MANY };
    const walk = { shape: [MANY / 3, 3], xStrides: [0, 1], outStrides: [3, 1] };
    backend.run('copyStrided', { x, out, ...walk, xOffset: 0, outOffset: 0 });
    const tail = 2 ** 20;
    const start = large.byteLength - 2 * tail;
    const got = new Uint16Array((await backend.read(large, start, 2 * tail)).buffer);
    const first = start / 2;
    let firstWrong = -1;
    for (let i = 0; i < tail && firstWrong < 0 && first + i < MANY; i++) {
      if (got[i] !== 11 * (((first + i) % 3) + 1)) {
        firstWrong = first + i;
      }
    }
    expect(firstWrong).toBe(-1);
    for (const buffer of [small, large]) {
      backend.free(buffer);
    }
  });

  /** Divides i by d of each pair, by the shaders' function. */
  async function divide(pairs: readonly (readonly [i: number, d: number])[]) {
    const adapter = await webGpu().requestAdapter();
    const device = await adapter!.requestDevice();
    const module = device.createShaderModule({
      code: `@group(0) @binding(0) var<storage, read_write> data: array<vec2<u32>>;
${INTEGER_DIVIDE}
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x < arrayLength(&data)) { data[id.x].x = divide(data[id.x].x, data[id.x].y); }
}`,
    });
    const pipeline = device.createComputePipeline({ layout: 'auto', compute: { module } });
    const size = pairs.length * 8;
    const data = device.createBuffer({ size, usage: 0x0080 | 0x0004 | 0x0008 });
    const landing = device.createBuffer({ size, usage: 0x0001 | 0x0008 });
    device.queue.writeBuffer(data, 0, Uint32Array.from(pairs.flat()));
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    pass.setPipeline(pipeline);
    const layout = pipeline.getBindGroupLayout(0);
    const entries = [{ binding: 0, resource: { buffer: data } }];
    pass.setBindGroup(0, device.createBindGroup({ layout, entries }));
    pass.dispatchWorkgroups(Math.ceil(pairs.length / 64));
    pass.end();
    encoder.copyBufferToBuffer(data, 0, landing, 0, size);
    device.queue.submit([encoder.finish()]);
    await landing.mapAsync(1);
    const words = new Uint32Array(landing.getMappedRange().slice(0));
    landing.unmap();
    device.destroy();
    return words.filter((_, at) => at % 2 === 0);
  }
});
