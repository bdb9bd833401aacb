// Opens the devices of the ranks in this process. On a GPU the ranks share one device, because
// drivers allow only so many; on the cpu each rank has threads and memory of its own.

import type { Backend, DType } from '@shardweave/tensor-core';
import type { MatmulChoiceTable, WebGpuBackend } from '@shardweave/tensor-core/webgpu';
import { defaultCacheDirectory } from '../data/token-cache.js';
import { UsageError } from '../errors.js';

export class DeviceHost implements AsyncDisposable {
  readonly #opened: Backend[] = [];
  #webGpu: Promise<WebGpuBackend> | undefined;

  /**
   * A rank's backend, with the fastest known products. It lives as long as the host.
   * @throws {UsageError} for webgpu where no adapter is found
   */
  async open(device: 'cpu' | 'webgpu', options: { readonly threads: number }): Promise<Backend> {
    if (device === 'cpu') {
      const { createCpuBackend } = await import('@shardweave/tensor-core/cpu');
      const backend = await createCpuBackend({ threads: options.threads });
      this.#opened.push(backend);
      return backend;
    }
    this.#webGpu ??= openWebGpu();
    return await this.#webGpu;
  }

  /** The tiles chosen for the GPU's products, where something was measured. */
  async matmulChoices(): Promise<MatmulChoiceTable | undefined> {
    return (await this.#webGpu)?.exportMatmulChoices();
  }

  /**
   * Measures the GPU's fastest products for the next run, which takes seconds, once. Does nothing
   * without a GPU, or with a driver that computes on the CPU and compiles for minutes.
   */
  async measureProducts(dtype: DType): Promise<void> {
    const backend = await this.#webGpu;
    if (backend?.info.isSoftware === false) {
      await backend.tuneMatmul({ dtypes: [dtype] });
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
    const { fileTuningStore, openNodeGpu } = await import('@shardweave/tensor-core/webgpu-node');
    return await createWebGpuBackend({
      gpu: openNodeGpu(),
      allowSoftware: true,
      tuningStore: fileTuningStore(defaultCacheDirectory(process.env)),
    });
  } catch (cause) {
    throw new UsageError(
      `--device webgpu: ${(cause as Error).message} Run "npm run doctor" to see what is missing, or use --device cpu.`,
      { cause },
    );
  }
}
