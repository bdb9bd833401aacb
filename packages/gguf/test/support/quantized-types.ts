// The types that a file gives its tensors, ours and those of llama.cpp's own quantizer.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type GgufType, type ModelGguf, modelGguf } from '@shardweave/gguf';
import { newFolder } from '../../../../tooling/test-kit/folders.ts';
import { llamaQuantize } from '../../../../tooling/test-kit/ggml.ts';
import { type SmallModel, zeroModel } from './hub-models.ts';
import { bytesOf, readGguf } from './written.ts';

/** The numbers of llama.cpp's `llama_ftype`. */
export const FILE_TYPES = {
  q4_0: 2,
  q4_1: 3,
  q8_0: 7,
  q5_0: 8,
  q5_1: 9,
  q4_K_S: 14,
  q4_K_M: 15,
  q5_K_S: 16,
  q5_K_M: 17,
  q6_K: 18,
} as const satisfies Partial<Record<GgufType, number>>;

const SIZES = {
  vocab_size: 512,
  hidden_size: 256,
  intermediate_size: 256,
  num_attention_heads: 2,
  num_key_value_heads: 1,
  head_dim: 16,
  max_position_embeddings: 64,
} as const;

/** Returns a decoder of width 256, unless `others` say something else. */
export function decoder(
  model_type: 'llama' | 'qwen2' | 'qwen3',
  num_hidden_layers: number,
  others: object = {},
): SmallModel {
  const config = { ...SIZES, model_type, num_hidden_layers, ...others };
  return { pre: model_type === 'llama' ? 'llama-bpe' : 'qwen2', config };
}

export function gpt2(n_layer: number, n_embd: number): SmallModel {
  const config = { vocab_size: 512, n_positions: 64, n_embd, n_layer, n_head: 4 };
  return { pre: 'gpt-2', config: { model_type: 'gpt2', ...config } };
}

/** Returns what files of these types say, by type: ours, and those that llama.cpp makes. */
export async function quantizedTypes(
  small: SmallModel | ModelGguf,
  types: readonly (keyof typeof FILE_TYPES)[],
) {
  const model = 'texts' in small ? small : await zeroModel(small);
  const folder = newFolder();
  const from = join(folder, 'f32.gguf');
  writeFileSync(from, await bytesOf(modelGguf(model, { type: 'f32', name: 'x' })));
  const ours: Record<string, FileTypes> = {};
  const theirs: Record<string, FileTypes> = {};
  for (const type of types) {
    const to = join(folder, `${type}.gguf`);
    llamaQuantize(from, { to, fileType: FILE_TYPES[type] });
    theirs[type] = await typesOf(to);
    ours[type] = await headerOf(model, type);
  }
  return { ours, theirs };
}

/** Returns the types of our file's tensors by name. */
export async function ownTypes(small: SmallModel, type: GgufType) {
  return (await headerOf(await zeroModel(small), type)).tensors;
}

/** Reads a file's header, which is its first piece and says it all. */
async function headerOf(model: ModelGguf, type: GgufType): Promise<FileTypes> {
  const { value: header } = await modelGguf(model, { type, name: 'x' }).pieces().next();
  const path = join(newFolder(), 'header.gguf');
  writeFileSync(path, header!);
  return typesOf(path);
}

type FileTypes = Awaited<ReturnType<typeof typesOf>>;

async function typesOf(path: string) {
  const { tensorInfos, metadata } = await readGguf(path);
  return {
    fileType: metadata['general.file_type'],
    version: metadata['general.quantization_version'],
    tensors: Object.fromEntries(tensorInfos.map(({ name, dtype }) => [name, dtype])),
  };
}
