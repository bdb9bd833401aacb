// Writes GGUF files, and models of the Hugging Face layout as such files. The entry `read` has what
// reads them.

export { type AdapterGguf, type AdapterGgufOptions, adapterGguf } from './adapter-gguf.js';
export * from './errors.js';
export { GGUF_TYPES, type GgufType } from './file-types.js';
export {
  type GgufFile,
  type GgufTensor,
  ggufFile,
  type MetadataValue,
} from './gguf-file.js';
export { MODEL_TEXTS, type ModelGguf, type ModelGgufOptions, modelGguf } from './model-gguf.js';
export type { GgufTensorType } from './tensor-types.js';
