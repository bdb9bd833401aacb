// What a file's type says of each of its tensors: the choice of llama.cpp's `llama_model_quantize`
// without an importance matrix, so that a file is as large, and as good, as people expect of its
// name. A tensor is known by its name in the file.

import type { ModelConfig } from '@shardweave/nn';
import type { EncoderConfig } from '@shardweave/nn/embedding';
import type { TensorPlan } from './model-tensors.js';
import { type GgufTensorType, isBlockType, TYPE_INFO } from './tensor-types.js';

/** The type of the matrices of a file; `_S` and `_M` mix types of blocks. */
export type GgufType = GgufTensorType | 'q4_K_S' | 'q4_K_M' | 'q5_K_S' | 'q5_K_M';

interface FileType {
  /** The format's number for it (`general.file_type`). */
  readonly id: number;
  /** The type of most matrices. */
  readonly most: GgufTensorType;
}

/** llama.cpp has no numbers of their own for q4_K and q5_K, which are nearest to `_S`. */
export const FILE_TYPES: Readonly<Record<GgufType, FileType>> = {
  f32: { id: 0, most: 'f32' },
  f16: { id: 1, most: 'f16' },
  bf16: { id: 32, most: 'bf16' },
  q8_0: { id: 7, most: 'q8_0' },
  q6_K: { id: 18, most: 'q6_K' },
  q5_K_M: { id: 17, most: 'q5_K' },
  q5_K_S: { id: 16, most: 'q5_K' },
  q5_K: { id: 16, most: 'q5_K' },
  q5_1: { id: 9, most: 'q5_1' },
  q5_0: { id: 8, most: 'q5_0' },
  q4_K_M: { id: 15, most: 'q4_K' },
  q4_K_S: { id: 14, most: 'q4_K' },
  q4_K: { id: 14, most: 'q4_K' },
  q4_1: { id: 3, most: 'q4_1' },
  q4_0: { id: 2, most: 'q4_0' },
};

/** The names of all types of files, those of most bits first. */
export const GGUF_TYPES = Object.keys(FILE_TYPES) as readonly GgufType[];

/** What takes the place of blocks of 256 in rows that are not a multiple of them. */
const SHORT_ROWS: Readonly<Partial<Record<GgufTensorType, GgufTensorType>>> = {
  q4_K: 'q5_0',
  q5_K: 'q5_1',
  q6_K: 'q8_0',
};

/** The model of a file, and the type that people know it by. */
export interface FileTypeOptions {
  readonly config: ModelConfig | EncoderConfig;
  readonly type: GgufType;
}

/**
 * The type of each tensor of a file, in the order of the plans. Vectors, GPT-2's positions
 * and an encoder's positions and token types are f32 in every file.
 */
export function tensorTypes(
  plans: readonly TensorPlan[],
  { config, type }: FileTypeOptions,
): GgufTensorType[] {
  const head = plans.find(({ name }) => name === 'output.weight') ?? plans[0]!;
  return plans.map((plan) => {
    const { shape, isAlwaysF32, name } = plan;
    if (shape.length === 1 || isAlwaysF32) {
      return 'f32';
    }
    const wanted = plan === head ? headType(type) : layerType(name, { config, type });
    return fittingType(wanted, shape.at(-1)!);
  });
}

/** The type for rows of `columns` numbers: whole blocks, smaller ones where there are none. */
export function fittingType(wanted: GgufTensorType, columns: number): GgufTensorType {
  const fits = (type: GgufTensorType) => columns % TYPE_INFO[type].blockElements === 0;
  return [wanted, SHORT_ROWS[wanted] ?? 'f16'].find(fits) ?? 'f16';
}

/** A head in blocks has the bits of q6_K at least, and so has a table that is the head as well. */
function headType(type: GgufType): GgufTensorType {
  const { most } = FILE_TYPES[type];
  return isBlockType(most) && most !== 'q8_0' ? 'q6_K' : most;
}

function layerType(name: string, { config, type }: FileTypeOptions): GgufTensorType {
  // GPT-2's q, k and v are one matrix.
  const isValue = name.endsWith('attn_v.weight') || name.endsWith('attn_qkv.weight');
  const isDown = name.endsWith('ffn_down.weight');
  const { most } = FILE_TYPES[type];
  const layer = layerOf(name);
  const numLayers = config.model_type === 'gpt2' ? config.n_layer : config.num_hidden_layers;
  const isMedium = type === 'q4_K_M' || type === 'q5_K_M';
  if (isMedium && (isValue || isDown) && hasMoreBits(layer, numLayers)) {
    return 'q6_K';
  }
  const hasFifthBit =
    (isValue && isOf70B(config)) ||
    (type === 'q4_K_S' && (isValue ? layer < 4 : isDown && layer < Math.floor(numLayers / 8)));
  return most === 'q4_K' && hasFifthBit ? 'q5_K' : most;
}

/**
 * Whether llama.cpp takes the model for one of 70 billion weights, whose eight heads share each v:
 * it looks at the number of layers.
 */
function isOf70B(config: ModelConfig | EncoderConfig): boolean {
  const { model_type: kind } = config;
  if (kind === 'gpt2' || kind === 'bert' || config.num_hidden_layers !== 80) {
    return false;
  }
  const { model_type: family, num_attention_heads: heads, num_key_value_heads: kvHeads } = config;
  return family === 'qwen2' || (family === 'llama' && heads !== kvHeads);
}

/** The first and the last eighth of the layers, and each third one between them. */
function hasMoreBits(layer: number, numLayers: number): boolean {
  const eighth = Math.floor(numLayers / 8);
  const isInner = layer >= eighth && layer < Math.floor((7 * numLayers) / 8);
  return !isInner || (layer - eighth) % 3 === 2;
}

/** The layer of a tensor `blk.<layer>.<name>`; -1 for others. */
function layerOf(name: string): number {
  const [block, layer] = name.split('.');
  return block === 'blk' ? Number(layer) : -1;
}
