// Writes and reads GGUF files, and models of the Hugging Face layout as such files.

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
export { ggufConfigText } from './read/config-text.js';
export type { GgufValue } from './read/metadata-values.js';
export {
  type ByteRange,
  type Gguf,
  ggufShardNames,
  openGguf,
  openGgufShards,
  type StoredTensor,
} from './read/open-gguf.js';
export {
  type GgufModelTensor,
  type ReadModel,
  type RowRange,
  readGgufModel,
} from './read/read-model.js';
export { ggufTokenizerTexts } from './read/tokenizer-texts.js';
export type { GgufTensorType } from './tensor-types.js';
