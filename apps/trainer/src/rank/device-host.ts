// Opens the devices of the ranks in this process. On a GPU they share one, for drivers take only so
// many; on the cpu each has threads and memory of its own.

import type { Backend } from '@shardweave/tensor-core';
import { UsageError } from '../errors.js';
import type { DeviceChoice } from '../run-config.js';

export class DeviceHost implements AsyncDisposable {
  readonly #opened: Backend[] = [];
  #webGpu: Promise<Backend> | undefined;
  #hasHardware: Promise<boolean> | undefined;

  /**
   * A rank's backend; `auto` is a GPU if there is one, else the cpu. It lives as long as the host.
   *
   * @throws UsageError for webgpu where no adapter is found.
   */
  async open(choice: DeviceChoice, options: { readonly threads: number }): Promise<Backend> {
    const isGpu = choice === 'webgpu' || (choice === 'auto' && (await this.#findHardware()));
    if (!isGpu) {
      const { createCpuBackend } = await import('@shardweave/tensor-core/cpu');
      const backend = await createCpuBackend(options);
      this.#opened.push(backend);
      return backend;
    }
    this.#webGpu ??= openWebGpu();
    return await this.#webGpu;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const webGpu = await this.#webGpu?.catch(() => undefined);
    for (const backend of [...this.#opened, webGpu]) await backend?.dispose();
  }

  #findHardware(): Promise<boolean> {
    this.#hasHardware ??= hasHardwareAdapter();
    return this.#hasHardware;
  }
}

async function openWebGpu(): Promise<Backend> {
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

/** Whatever fails here (no package, no driver) means that there is no GPU to prefer. */
async function hasHardwareAdapter(): Promise<boolean> {
  try {
    const { openNodeGpu } = await import('@shardweave/tensor-core/webgpu-node');
    const { listAdapters } = await import('@shardweave/tensor-core/webgpu');
    const adapters = await listAdapters(openNodeGpu());
    return adapters.some(({ isSoftware }) => !isSoftware);
  } catch {
    return false;
  }
}
