// Opens the devices of the ranks in this process. Ranks on one GPU share one device, because
// drivers allow only so many; on the cpu each rank has threads and memory of its own.

import { type Backend, MAX_THREADS, StateError } from '@shardweave/tensor-core';
import type { MatmulChoiceTable, WebGpuBackend } from '@shardweave/tensor-core/webgpu';
import type { NodeAdapter } from '@shardweave/tensor-core/webgpu-node';
import { defaultCacheDirectory } from '../data/token-cache.js';
import { askedAdapter, type DeviceChoice, kindOf } from '../device-choice.js';
import { UsageError } from '../errors.js';
import type { Flags } from '../flags/train-flags.js';
import { chooseAdapter } from './choose-adapter.js';

export interface OpenDeviceOptions {
  /** Those of a cpu device, which takes as many of them as it can. */
  readonly threads: number;
  /** What computes the products of a cpu device. Default `wasm`. */
  readonly products?: Flags['products'];
  /** As CpuBackendOptions has it. */
  readonly quantizeActivations?: boolean;
  /** The rank's number among those of its host, by which several cards are divided. Default 0. */
  readonly localRank?: number;
}

export class DeviceHost implements AsyncDisposable {
  readonly #opened: Backend[] = [];
  /** The GPUs by the name with which Dawn opens them; undefined for the one that it prefers. */
  readonly #gpus = new Map<string | undefined, Promise<WebGpuBackend>>();
  #adapters: Promise<readonly NodeAdapter[]> | undefined;

  /**
   * A rank's backend, with the fastest known products. It lives as long as the host.
   * @throws {UsageError} for webgpu where no adapter is found, or not the one that was asked for
   */
  async open(
    choice: DeviceChoice,
    { threads, products = 'wasm', quantizeActivations, localRank = 0 }: OpenDeviceOptions,
  ): Promise<Backend> {
    if (kindOf(choice) === 'cpu') {
      const { createCpuBackend } = await import('@shardweave/tensor-core/cpu');
      const options = {
        ...{ threads: Math.min(threads, MAX_THREADS), products },
        quantizeActivations: quantizeActivations ?? false,
      };
      const backend = await createCpuBackend(options).catch((cause: unknown) => {
        throw explainProducts(cause);
      });
      this.#opened.push(backend);
      return backend;
    }
    try {
      const device = await this.#deviceName(askedAdapter(choice), localRank);
      const gpu = this.#gpus.get(device) ?? openWebGpu(device);
      this.#gpus.set(device, gpu);
      return await gpu;
    } catch (cause) {
      if (cause instanceof UsageError) {
        throw cause;
      }
      throw new UsageError(
        `--device ${choice}: ${(cause as Error).message} Run "npm run doctor" to see what is missing, or use --device cpu.`,
        { cause },
      );
    }
  }

  /** The tiles chosen for the products of a GPU opened here; undefined for a cpu device. */
  async matmulChoices(backend: Backend): Promise<MatmulChoiceTable | undefined> {
    return (await this.#gpuOf(backend))?.exportMatmulChoices();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const backend of [...this.#opened, ...(await this.#openGpus())]) {
      await backend.dispose();
    }
  }

  /**
   * The name by which Dawn opens the adapter of a rank. The first rank of a host takes what Dawn
   * prefers, so that a run of one rank does not look for others.
   */
  async #deviceName(asked: string | undefined, localRank: number): Promise<string | undefined> {
    if (asked === undefined && localRank === 0) {
      return undefined;
    }
    this.#adapters ??= listAdapters();
    const adapters = await this.#adapters;
    const chosen = chooseAdapter(adapters, { asked, localRank });
    return chosen === adapters[0] ? undefined : chosen?.device;
  }

  async #gpuOf(backend: Backend): Promise<WebGpuBackend | undefined> {
    return (await this.#openGpus()).find((gpu) => gpu === backend);
  }

  async #openGpus(): Promise<WebGpuBackend[]> {
    const settled = await Promise.allSettled(this.#gpus.values());
    return settled.flatMap((gpu) => (gpu.status === 'fulfilled' ? [gpu.value] : []));
  }
}

/** Turns a library that can't be had into what the user asked for. */
export function explainProducts(cause: unknown): unknown {
  return cause instanceof StateError && cause.message.startsWith('cpu: native products')
    ? new UsageError(
        `--products native: ${cause.message.replace(/^cpu: native products:? /, '')}`,
        {
          cause,
        },
      )
    : cause;
}

async function listAdapters(): Promise<readonly NodeAdapter[]> {
  const { listNodeAdapters } = await import('@shardweave/tensor-core/webgpu-node');
  return listNodeAdapters();
}

async function openWebGpu(device: string | undefined): Promise<WebGpuBackend> {
  const { createWebGpuBackend } = await import('@shardweave/tensor-core/webgpu');
  const { fileTuningStore, openNodeGpu } = await import('@shardweave/tensor-core/webgpu-node');
  const cache = defaultCacheDirectory(process.env);
  return createWebGpuBackend({
    gpu: openNodeGpu(device === undefined ? {} : { adapter: device }),
    allowSoftware: true,
    ...(cache !== undefined && { tuningStore: fileTuningStore(cache) }),
  });
}
