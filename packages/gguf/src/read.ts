// Reads GGUF files: what a header says, tensors by ranges, and models with their tokenizers.

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
