// A model's tensors under the model's own names. Other writers of such files add prefixes, masks
// and tables that the model does not have.
import { elementCountOf } from '@shardweave/tensor-core';
import { FormatError } from '../../errors.js';
import type { LazyTensor } from '../../host-tensor.js';
import type { ModelConfig } from '../model-config.js';

const HEAD = 'lm_head.weight';
/**
 * Token tables have hundreds of megabytes. Two parts of this length take no more memory than any
 * other tensor.
 */
const COMPARED_ELEMENTS = 2 ** 22;
const GPT2_PREFIX = 'transformer.';
/** Files of embedders lack it: they have the decoder without its head. */
const DECODER_PREFIX = 'model.';
/** Causal masks, which older files of GPT-2 contain. */
const GPT2_MASKS = /^transformer\.h\.\d+\.attn\.(bias|masked_bias)$/;
/** Rotary frequencies, which older files of Llama contain. */
const FREQUENCIES = /\.rotary_emb\.inv_freq$/;

/**
 * Picks the model's own tensors from those of its files. Where the files have a tied head too, it
 * is read and compared with the token table.
 * @throws {FormatError} where such a head differs from the token table, and where two names stand
 * for one tensor
 */
export async function ownTensors(
  tensors: ReadonlyMap<string, LazyTensor>,
  config: ModelConfig,
): Promise<Map<string, LazyTensor>> {
  const isGpt2 = config.model_type === 'gpt2';
  const isTied = config.model_type === 'gpt2' || config.tie_word_embeddings;
  const prefix = isGpt2 ? GPT2_PREFIX : DECODER_PREFIX;
  const table = isGpt2 ? 'transformer.wte.weight' : 'model.embed_tokens.weight';
  const state = new Map<string, LazyTensor>();
  for (const [given, tensor] of tensors) {
    const isBare = given !== HEAD && !given.startsWith(prefix);
    const name = isBare ? prefix + given : given;
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
    const [own, other] = [await a.readPart!(part), await b.readPart!(part)]; // of files, which have it
    if (!own.every((byte, i) => byte === other[i])) {
      return false;
    }
  }
  return true;
}
