// Tests in Node get their WebGPU device here, and buffers with equal contents on it and on other
// devices. Without an adapter the tests skip and name the reason. With SHARDWEAVE_REQUIRE_WEBGPU=1
// their files fail instead.
//
// If the adapter is no hardware, tests of attention's tiles run on SwiftShader, which compiles them
// in time.

import type { Backend, BackendBuffer, KernelCalls, View } from '@shardweave/tensor-core';
import { createWebGpuBackend, type WebGpuBackend } from '@shardweave/tensor-core/webgpu';
import { openNodeGpu } from '@shardweave/tensor-core/webgpu-node';
import { noSwiftShader, openSwiftShader } from '../../../../tooling/test-kit/swift-shader.ts';

const gpu = await openGpu();
/** Why there is no adapter, or undefined where there is one. */
export const reason = gpu instanceof Error ? gpu.message : undefined;
export const isLong = process.env.SHARDWEAVE_LONG === '1';
if (process.env.SHARDWEAVE_REQUIRE_WEBGPU === '1' && reason !== undefined) {
  throw new Error(`SHARDWEAVE_REQUIRE_WEBGPU=1, but there is no adapter: ${reason}`);
}

/** Returns the title of a `describe` over tests that need an adapter. */
export const title = (name: string, why = reason) => `${name}${why ? ` (${why})` : ''}`;

/** Whether the adapter is a GPU, whose driver compiles every tile fast. */
export const isHardware = gpu instanceof Error ? false : await hasHardware(gpu);
/** Why attention's tiles can't run here, or undefined where they can. */
export const tilesReason = reason ?? (isHardware ? undefined : noSwiftShader);

if (process.env.SHARDWEAVE_REQUIRE_WEBGPU === '1' && tilesReason !== undefined) {
  throw new Error(
    `SHARDWEAVE_REQUIRE_WEBGPU=1, but nothing runs attention's tiles: ${tilesReason}`,
  );
}

/** Opens a device of a driver that compiles attention's tiles in time. */
export async function openTilesDevice(): Promise<GPUDevice> {
  const adapter = await (await quickGpu()).requestAdapter();
  return adapter!.requestDevice();
}

export type Options = NonNullable<Parameters<typeof createWebGpuBackend>[0]>;

export function open(options: Options = {}): Promise<WebGpuBackend> {
  return createWebGpuBackend({ gpu: webGpu(), ...options });
}

/**
 * Opens a backend of the driver that compiles fastest. SwiftShader takes a third of Mesa's time for
 * kernels with barriers. It has no shader-f16, so 16-bit values are unpacked from words.
 */
export async function openQuick(options: Options): Promise<WebGpuBackend> {
  return open({ gpu: await quickGpu(), ...options });
}

async function quickGpu(): Promise<GPU> {
  return isHardware || noSwiftShader !== undefined ? webGpu() : openSwiftShader();
}

export function webGpu(): GPU {
  return gpu as GPU;
}

/** Makes buffers with equal contents on every backend: the n-th random view is always the same. */
export class Bench {
  readonly backend: Backend;
  readonly #buffers: BackendBuffer[] = [];
  #seed = 1;

  constructor(backend: Backend) {
    this.backend = backend;
  }

  /** Makes a view of uniform values in [-1, 1). */
  random(size: number, dtype: 'f32' | 'f16' | 'bf16'): View {
    const values = Float32Array.from({ length: size }, () => this.#next() * 2 - 1);
    const whole = this.of(values, 'f32');
    if (dtype === 'f32') {
      return whole;
    }
    const out = this.of(new Float32Array(Math.ceil(size / 2)), 'f32');
    const half: View = { ...out, dtype, size };
    this.backend.run('cast', { x: whole, out: half });
    return half;
  }

  zeros(size: number): View {
    return this.of(new Float32Array(size), 'f32');
  }

  /** Makes a view of ids in [0, below). */
  ids(size: number, below: number): View {
    const ids = Uint32Array.from({ length: size }, () => Math.floor(this.#next() * below));
    return this.of(ids, 'u32');
  }

  async value(view: View): Promise<number> {
    return new Float32Array((await this.backend.read(view.buffer, 0, 4)).buffer)[0]!;
  }

  bytes(view: View): Promise<Uint8Array> {
    return this.backend.read(view.buffer, 0, view.buffer.byteLength);
  }

  freeAll(): void {
    for (const buffer of this.#buffers.splice(0)) {
      this.backend.free(buffer);
    }
  }

  of(data: Float32Array | Uint32Array, dtype: 'f32' | 'u32'): View {
    const buffer = this.backend.alloc(data.byteLength, 'test');
    this.#buffers.push(buffer);
    this.backend.write(buffer, 0, new Uint8Array(data.buffer));
    return { buffer, byteOffset: 0, dtype, size: data.length };
  }

  /** This is Park and Miller's generator, which is good enough for test values. */
  #next(): number {
    this.#seed = (this.#seed * 48271) % 2147483647;
    return this.#seed / 2147483647;
  }
}

export function product(extent: {
  m: number;
  n: number;
  k: number;
  transposeA: boolean;
  transposeB: boolean;
}): Omit<KernelCalls['matmul'], 'a' | 'b' | 'out' | 'bias'> {
  const { m, n, k, transposeA, transposeB } = extent;
  return {
    ...extent,
    aRow: transposeA ? m : k,
    bRow: transposeB ? k : n,
    outRow: n,
    batch: [1, 1],
    aBatch: [0, 0],
    bBatch: [0, 0],
    outBatch: [0, 0],
    alpha: 1,
    accumulate: false,
  };
}

async function hasHardware(opened: GPU): Promise<boolean> {
  const backend = await createWebGpuBackend({ gpu: opened });
  const { isSoftware } = backend.info;
  await backend.dispose();
  return !isSoftware;
}

async function openGpu(): Promise<GPU | Error> {
  try {
    const opened = openNodeGpu();
    const adapter = await opened.requestAdapter();
    return adapter === null ? new Error('no adapter: no Vulkan driver that Dawn takes') : opened;
  } catch (error) {
    return new Error(`the npm package webgpu does not load: ${(error as Error).message}`);
  }
}
