// Numbers in ggml's blocks of 4 to 8 bits, as GGUF files keep them.

export {
  BLOCK_SIZES,
  BLOCK_TYPES,
  type BlockType,
  blocksByteLength,
} from './blocks/block-types.js';
export { decodeBlocks } from './blocks/decode-blocks.js';
export { BlockNumberError, encodeBlocks } from './blocks/encode-blocks.js';
