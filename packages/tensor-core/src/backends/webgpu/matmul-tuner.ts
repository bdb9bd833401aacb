// The tiles that products take on one device: those of the store, those of a table, and those that
// were measured.

import type { MatmulChoices, MatmulChoiceTable } from './kernel/matmul-choices.js';
import type { DeviceQueue } from './queue/device-queue.js';
import {
  type MatmulTuning,
  type TuningParts,
  tuneMatmul,
  tuningKey,
} from './tuning/matmul-tuning.js';
import { withStopwatch } from './tuning/stopwatch.js';
import type { TuningStore } from './tuning/tuning-store.js';

export interface MatmulTunerParts {
  readonly device: GPUDevice;
  readonly info: GPUAdapterInfo;
  readonly tuningStore: TuningStore | undefined;
}

/** What runs and times products. */
interface MatmulTunerTools extends Pick<TuningParts, 'context' | 'prepare'> {
  readonly queue: DeviceQueue;
}

export class MatmulTuner {
  readonly choices: MatmulChoices;
  readonly #parts: MatmulTunerParts;
  readonly #tools: MatmulTunerTools;

  constructor(parts: MatmulTunerParts, tools: MatmulTunerTools) {
    this.choices = tools.context.matmulChoices;
    this.#parts = parts;
    this.#tools = tools;
  }

  /** See WebGpuBackend.tuningKey. */
  get key(): string {
    const { device: gpu, info } = this.#parts;
    const { vendor, architecture, device, description } = info;
    const { subgroupMinSize, subgroupMaxSize } = info;
    const { maxBufferSize, maxStorageBufferBindingSize } = gpu.limits;
    const { maxComputeWorkgroupStorageSize, maxComputeInvocationsPerWorkgroup } = gpu.limits;
    const known = [
      ...[vendor, architecture, device, description, subgroupMinSize, subgroupMaxSize],
      ...[maxBufferSize, maxStorageBufferBindingSize],
      ...[maxComputeWorkgroupStorageSize, maxComputeInvocationsPerWorkgroup],
    ];
    return `${known.map((part) => part ?? '').join(' ')} ${tuningKey(this.#tools.context)}`;
  }

  /** Takes the tiles that the store has for this device; none where it has none. */
  async load(): Promise<void> {
    this.choices.import((await this.#parts.tuningStore?.read(this.key)) ?? {});
  }

  /** See WebGpuBackend.tuneMatmul. The products' operands are buffers of `backend`. */
  async tune(backend: TuningParts['backend'], options: MatmulTuning): Promise<MatmulChoiceTable> {
    const { queue, context, prepare } = this.#tools;
    const before = JSON.stringify(this.choices.export());
    await withStopwatch(
      {
        recorder: queue.recorder,
        sync: () => queue.sync({ isQuiet: false }),
        timestamps: (sink) => queue.timestampsFor(sink, { isByKernel: false }),
      },
      (stopwatch) => tuneMatmul({ backend, context, prepare, stopwatch }, options),
    );
    const table = this.choices.export();
    if (JSON.stringify(table) !== before) {
      await this.#parts.tuningStore?.write(this.key, table);
    }
    return table;
  }
}
