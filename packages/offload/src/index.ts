// OffloadModel: layers rest in host memory or on disk, and are on the device only while they run.

export {
  OffloadBudgetError,
  OffloadBusyError,
  OffloadConfigError,
  OffloadError,
  type OffloadErrorCode,
} from './errors.js';
export { type OffloadHostMemory, OffloadModel } from './offload-model.js';
export type { OffloadOptions } from './options.js';
export { splitLayers, splitRows } from './slices/split-layers.js';
