// What each module of a model does to a device's memory, and where checkpoints save most.

export { type LayerMeasure, layerChart } from './charts/layer-chart.js';
export { memoryChart } from './charts/memory-chart.js';
export { MemoryTrackerConfigError, MemoryTrackerError, TraceFormatError } from './errors.js';
export type { GatherListener, GatherSource, GatherTrace } from './gather-source.js';
export { LayerMemoryTracker, type LayerMemoryTrackerOptions } from './layer-memory-tracker.js';
export {
  firstForward,
  type MemoryPhase,
  type MemorySample,
  type MemoryTrace,
} from './memory-trace.js';
export { type CheckpointPlacement, placeCheckpoints } from './place-checkpoints.js';
export { type CheckpointSuggestion, suggestCheckpoints } from './suggest-checkpoints.js';
export { type Producer, summaryText, topProducers } from './summary.js';
export { memoryTraceText, parseMemoryTrace } from './trace-file.js';
