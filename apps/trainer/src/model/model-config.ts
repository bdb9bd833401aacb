// Reads the shape of a GPT-2 from a directory in the Hugging Face layout, before any device exists.

import { access, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { UsageError } from '../errors.js';
import type { GptShape } from './presets.js';

const size = z.int().positive();
const probability = z.number().min(0).lt(1).optional();

/** The fields that matter here. What GPT-2 fixes elsewhere (activation, tied head) is checked. */
const CONFIG = z.object({
  model_type: z.literal('gpt2').optional(),
  vocab_size: size,
  n_positions: size,
  n_embd: size,
  n_layer: size,
  n_head: size,
  n_inner: z.int().nullish(),
  activation_function: z.literal(['gelu_new', 'gelu_pytorch_tanh']).optional(),
  tie_word_embeddings: z.literal(true).optional(),
  layer_norm_epsilon: z.number().positive().optional(),
  resid_pdrop: probability,
  embd_pdrop: probability,
  attn_pdrop: probability,
});

/** GPT-2's own, where config.json leaves dropout out. */
const GPT2_DROPOUT = 0.1;

/**
 * The shape in `directory`/config.json.
 *
 * @throws UsageError where the file is missing, not JSON, or describes something else than a GPT-2.
 */
export async function readModelShape(directory: string): Promise<GptShape> {
  const path = join(directory, 'config.json');
  let json: unknown;
  try {
    json = JSON.parse(await readFile(path, 'utf8'));
  } catch (error) {
    const reason =
      error instanceof SyntaxError
        ? `is not JSON (${error.message})`
        : `can't be read (${(error as Error).message})`;
    throw new UsageError(
      `--model: ${path} ${reason}. Give a directory with a GPT-2's config.json.`,
      { cause: error },
    );
  }
  const result = CONFIG.safeParse(json);
  if (!result.success) {
    const issue = result.error.issues[0]!;
    throw new UsageError(
      `--model: ${path} is not a GPT-2 that can be trained here: ${issue.path.join('.')}: ${issue.message}.`,
    );
  }
  const config = result.data;
  if (config.n_inner != null && config.n_inner !== 4 * config.n_embd) {
    throw new UsageError(
      `--model: ${path} has n_inner ${config.n_inner}; only 4 * n_embd = ${4 * config.n_embd} is supported.`,
    );
  }
  if (config.n_embd % config.n_head !== 0) {
    throw new UsageError(
      `--model: ${path} has n_embd ${config.n_embd}, which n_head ${config.n_head} doesn't divide.`,
    );
  }
  const dropouts = [config.resid_pdrop, config.embd_pdrop, config.attn_pdrop].map(
    (p) => p ?? GPT2_DROPOUT,
  );
  return {
    vocabSize: config.vocab_size,
    positions: config.n_positions,
    layers: config.n_layer,
    width: config.n_embd,
    heads: config.n_head,
    dropout: Math.max(...dropouts),
    layerNormEpsilon: config.layer_norm_epsilon ?? 1e-5,
  };
}

/** Whether the directory holds weights; without them training starts from random ones. */
export async function hasWeights(directory: string): Promise<boolean> {
  return await access(join(directory, 'model.safetensors')).then(
    () => true,
    () => false,
  );
}
