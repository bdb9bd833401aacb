// The tensors of a model's files under the model's own names: files of other writers have prefixes,
// masks and tables too many.

import { elementCountOf } from '@shardweave/tensor-core';
import { FormatError } from '../errors.js';
import type { ElementRange, LazyTensor } from '../host-tensor.js';
import type { ModelConfig } from './model-config.js';
import { elementBytesOf } from './safetensors-header.js';

const HEAD = 'lm_head.weight';
/**
 * A table is of hundreds of megabytes; two parts of it at a time are no more than another tensor.
 */
const COMPARED_ELEMENTS = 2 ** 22;
const GPT2_PREFIX = 'transformer.';
/** Causal masks, which older files of GPT-2 hold as state. */
const GPT2_MASKS = /^transformer\.h\.\d+\.attn\.(bias|masked_bias)$/;
/** Rotary frequencies, which older files of Llama hold as state. */
const FREQUENCIES = /\.rotary_emb\.inv_freq$/;

/**
 * The model's own tensors among those of its files. A tied head that the files have too is compared
 * with the table, which reads both.
 * @throws {FormatError} where it is another, and where one tensor has two names
 */
export async function ownTensors(
  tensors: ReadonlyMap<string, LazyTensor>,
  config: ModelConfig,
): Promise<Map<string, LazyTensor>> {
  const isGpt2 = config.model_type === 'gpt2';
  const isTied = config.model_type === 'gpt2' || config.tie_word_embeddings;
  const table = isGpt2 ? 'transformer.wte.weight' : 'model.embed_tokens.weight';
  const state = new Map<string, LazyTensor>();
  for (const [given, tensor] of tensors) {
    const isBare = isGpt2 && given !== HEAD && !given.startsWith(GPT2_PREFIX);
    const name = isBare ? GPT2_PREFIX + given : given;
    if ((isTied && given === HEAD) || GPT2_MASKS.test(name) || FREQUENCIES.test(name)) {
      continue;
    }
    if (state.has(name)) {
      throw new FormatError(`${config.model_type}: expected '${name}' once, got it twice.`);
    }
    state.set(name, tensor);
  }
  const head = isTied ? tensors.get(HEAD) : undefined;
  const tied = state.get(table);
  if (head !== undefined && tied !== undefined && !(await isSame(head, tied))) {
    throw new FormatError(
      `${config.model_type}: expected '${HEAD}' to be the token table ('${table}'), but they differ. The config ties them.`,
    );
  }
  return state;
}

async function isSame(a: LazyTensor, b: LazyTensor): Promise<boolean> {
  if (a.dtype !== b.dtype || a.shape.join() !== b.shape.join()) {
    return false;
  }
  const size = elementCountOf(a.shape);
  for (let first = 0; first < size; first += COMPARED_ELEMENTS) {
    const part = { first, count: Math.min(COMPARED_ELEMENTS, size - first) };
    const [own, other] = [await partOf(a, part), await partOf(b, part)];
    if (!own.every((byte, i) => byte === other[i])) {
      return false;
    }
  }
  return true;
}

async function partOf(tensor: LazyTensor, part: ElementRange): Promise<Uint8Array> {
  if (tensor.readPart !== undefined) {
    return tensor.readPart(part);
  }
  const bytes = elementBytesOf(tensor.dtype);
  return (await tensor.read()).subarray(part.first * bytes, (part.first + part.count) * bytes);
}
