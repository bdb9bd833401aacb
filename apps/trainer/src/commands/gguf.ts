// The command `gguf`: writes a model directory as one file that llama.cpp runs.

import { existsSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { basename, join, resolve } from 'node:path';
import { GGUF_TYPES, GgufError, MODEL_TEXTS, modelGguf } from '@shardweave/gguf';
import { parameterCount } from '@shardweave/nn';
import { TOKENIZER_FILE } from '../data/tokenizer.js';
import { UsageError } from '../errors.js';
import { writePieces } from '../files/write-file.js';
import { flag, needed, type ValuesOf } from '../flags/flag.js';
import { file, oneOf } from '../flags/flag-kinds.js';
import { formatBytes, formatCount } from '../format.js';
import { findModel, withModelState } from '../model/model-directory.js';
import { defineWriter, QUIET } from './define-command.js';
import { writeOut } from './new-directory.js';

const FLAGS = {
  model: needed(file, [
    '--model <DIR>',
    'config.json, model.safetensors and tokenizer.json, or a run',
  ]),
  out: needed(file, ['--out <FILE>', 'a new one, such as model.gguf']),
  type: flag(oneOf(GGUF_TYPES), 'f16', [
    `--type <${GGUF_TYPES.join('|')}>`,
    'of matrices; q8_0: 8 bits, a scale for 32',
  ]),
  quiet: QUIET,
};

/** The command `gguf`. */
export const gguf = defineWriter({
  name: 'gguf',
  description: 'Writes a model with its tokenizer as GGUF, the file that llama.cpp runs.',
  flags: FLAGS,
  examples: [
    {
      line: 'gguf --model runs/first --out first.gguf --type q8_0',
      says: 'a trained model in 8 bits, its tokenizer inside',
    },
    { line: 'gguf --model DIR --out model.gguf', says: 'in f16' },
  ],
  write: async (flags, signal) => [await writeGguf(flags, signal)],
});

/** Writes the file, whole or not at all; resolves to a line about it. */
async function writeGguf(
  { model, out, type }: ValuesOf<typeof FLAGS>,
  signal: AbortSignal,
): Promise<string> {
  const { path, config } = await findModel(model);
  if (existsSync(out)) {
    throw new UsageError(
      `--out: ${out} is there already. Choose another file, or remove that one.`,
    );
  }
  const texts = await readTexts(path);
  if (!texts.has(TOKENIZER_FILE)) {
    throw new UsageError(
      `--model: ${path} can't be a GGUF, for it has no ${TOKENIZER_FILE}. Put the model's own there; one that learnt bytes has none: train from a --model DIR that has one.`,
    );
  }
  const name = basename(resolve(model));
  return await withModelState(path, config, async (state) => {
    try {
      const file = modelGguf({ texts, state }, { type, name });
      const { byteLength } = file;
      await writeOut(out, (path) => writePieces(path, file.pieces(), { signal, byteLength }));
      const parameters = formatCount(parameterCount(config));
      return `${out}: ${config.model_type}, ${parameters} parameters, ${type}, ${formatBytes(byteLength)}`;
    } catch (cause) {
      if (cause instanceof GgufError) {
        throw new UsageError(`--model: ${path} can't be a GGUF. ${cause.message}`, { cause });
      }
      throw cause;
    }
  });
}

async function readTexts(directory: string): Promise<Map<string, string>> {
  const texts = new Map<string, string>();
  for (const name of MODEL_TEXTS) {
    const path = join(directory, name);
    if (existsSync(path)) {
      texts.set(name, await readFile(path, 'utf8'));
    }
  }
  return texts;
}
