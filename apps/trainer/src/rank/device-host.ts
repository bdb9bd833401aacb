// Opens the devices of the ranks in this process. On a GPU they share one, for drivers take only so
// many; on the cpu each has threads and memory of its own.

import type { Backend, DType } from '@shardweave/tensor-core';
import type { WebGpuBackend } from '@shardweave/tensor-core/webgpu';
import { UsageError } from '../errors.js';
import { MatmulCache } from './matmul-cache.js';

export class DeviceHost implements AsyncDisposable {
  readonly #opened: Backend[] = [];
  readonly #matmulCache = new MatmulCache();
  #webGpu: Promise<WebGpuBackend> | undefined;

  /**
   * A rank's backend, with the fastest products in `dtype` that are known. It lives as long as the
   * host.
   *
   * @throws {UsageError} for webgpu where no adapter is found.
   */
  async open(
    device: 'cpu' | 'webgpu',
    options: { readonly threads: number; readonly dtype: DType },
  ): Promise<Backend> {
    if (device === 'cpu') {
      const { createCpuBackend } = await import('@shardweave/tensor-core/cpu');
      const backend = await createCpuBackend({ threads: options.threads });
      this.#opened.push(backend);
      return backend;
    }
    this.#webGpu ??= openWebGpu();
    const backend = await this.#webGpu;
    const choices = await this.#matmulCache.read(backend.info.description, options.dtype);
    if (choices !== undefined) {
      backend.importMatmulChoices(choices);
    }
    return backend;
  }

  /** Leaves the GPU's fastest products to the next run; nothing where there is no GPU. */
  async measureProducts(dtype: DType): Promise<void> {
    const backend = await this.#webGpu;
    if (backend !== undefined) {
      await this.#matmulCache.measure(backend, dtype);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const webGpu = await this.#webGpu?.catch(() => undefined);
    for (const backend of [...this.#opened, webGpu]) {
      await backend?.dispose();
    }
  }
}

async function openWebGpu(): Promise<WebGpuBackend> {
  const { createWebGpuBackend } = await import('@shardweave/tensor-core/webgpu');
  try {
    const { openNodeGpu } = await import('@shardweave/tensor-core/webgpu-node');
    return await createWebGpuBackend({ gpu: openNodeGpu(), allowSoftware: true });
  } catch (cause) {
    throw new UsageError(
      `--device webgpu: ${(cause as Error).message} Run "npm run doctor" to see what is missing, or use --device cpu.`,
      { cause },
    );
  }
}
