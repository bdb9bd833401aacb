// Writes text encoders and classifiers as ONNX, and the folder of them that transformers.js loads.

export * from './errors.js';
export type { OnnxDType } from './layers.js';
export { ONNX_TEXTS, type OnnxFilesOptions, type OnnxFolder, onnxFiles } from './onnx-files.js';
export { type OnnxModel, type OnnxModelOptions, type OnnxTask, onnxModel } from './onnx-model.js';
export type { ModelState } from './weights.js';
