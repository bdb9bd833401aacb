// WebGPU in Node through Dawn's bindings. The only file that imports the npm package `webgpu`, an
// optional peer; a Vulkan driver must be installed.

import { create } from 'webgpu';
import { checkOptions } from '../../check-options.js';

export { fileTuningStore } from './file-tuning-store.js';

/** Objects kept for the life of the process, since Dawn crashes once a device's is collected. */
const instances: GPU[] = [];

/** Adapters offer matrix units, which are experimental, behind the second alone. */
const DEFAULT_FLAGS = [
  'disable-dawn-features=timestamp_quantization',
  'enable-dawn-features=allow_unsafe_apis',
];

/** Options of openNodeGpu, which loads the optional peer `webgpu` (Dawn). */
export interface NodeGpuOptions {
  /** Dawn toggles and backends, e.g. ['backend=null']. */
  readonly flags?: readonly string[];
}

/**
 * Dawn's GPU object, to pass to createWebGpuBackend. Each call makes one, which lives as long as
 * the process. Timestamps are not quantized, which no page could read here.
 */
export function openNodeGpu(options: NodeGpuOptions = {}): GPU {
  checkOptions<NodeGpuOptions>('openNodeGpu', options, {
    flags: {
      expected: 'an array of strings',
      holds: (value) => Array.isArray(value) && value.every((flag) => typeof flag === 'string'),
    },
  });
  const flags = options.flags ?? DEFAULT_FLAGS;
  const gpu = create([...flags]);
  instances.push(gpu);
  return gpu;
}
