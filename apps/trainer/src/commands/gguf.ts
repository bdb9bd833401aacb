// The command `gguf`: writes a model directory as one file that llama.cpp runs, or adapters as one
// that it loads beside their base.

import { existsSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { basename, join, resolve } from 'node:path';
import { adapterGguf, GGUF_TYPES, GgufError, MODEL_TEXTS, modelGguf } from '@shardweave/gguf';
import { parameterCount } from '@shardweave/nn';
import { TOKENIZER_FILE } from '../data/tokenizer.js';
import { UsageError } from '../errors.js';
import { GGUF_END, ggufTexts, isGgufFile } from '../files/gguf-model.js';
import { writePieces, writeText } from '../files/write-file.js';
import { flag, needed, type ValuesOf } from '../flags/flag.js';
import { file, oneOf } from '../flags/flag-kinds.js';
import { formatBytes, formatCount } from '../format.js';
import { hubNameOf, isHead } from '../hub/hub-name.js';
import { parseModelName } from '../hub/model-name.js';
import { findAdapter, readAdapter, withAdapterState } from '../model/adapter-directory.js';
import {
  findModel,
  findModelDirectory,
  readModelConfig,
  withModelState,
} from '../model/model-directory.js';
import { defineWriter, QUIET } from './define-command.js';
import { writeOut } from './new-directory.js';

const FLAGS = {
  model: needed(file, [
    '--model <DIR|ORG/NAME>',
    'config.json, model.safetensors and tokenizer.json, or a run; a GGUF file; or a model of the Hub',
  ]),
  out: needed(file, ['--out <FILE>', 'a new one, such as model.gguf']),
  adapter: flag(file, undefined, [
    '--adapter <DIR|ORG/NAME>',
    'write these adapters of the model alone, for the base that one already has',
  ]),
  type: flag(oneOf(GGUF_TYPES), undefined, [
    `--type <${GGUF_TYPES.join('|')}>`,
    'of matrices, as llama.cpp names its files (default: f16; of adapters f32)',
  ]),
  quiet: QUIET,
};

/** The command `gguf`. */
export const gguf = defineWriter({
  name: 'gguf',
  description: 'Writes a model with its tokenizer as GGUF, the file that llama.cpp runs.',
  flags: FLAGS,
  model: ({ adapter }) => (adapter === undefined ? 'weights' : 'config'),
  examples: [
    {
      line: 'gguf --model runs/first --out first.gguf --type q8_0',
      says: 'a trained model in 8 bits, its tokenizer inside',
    },
    {
      line: 'gguf --model DIR --out model-Q4_K_M.gguf --type q4_K_M',
      says: 'in 4 to 6 bits, each matrix in the type that llama.cpp itself gives it',
    },
    { line: 'gguf --model DIR --out model.gguf', says: 'in f16' },
    {
      line: 'gguf --model DIR --adapter runs/tuned/adapter --out mine-lora.gguf',
      says: 'adapters alone, for llama.cpp, ollama and others beside any GGUF of the model',
    },
  ],
  write: async (flags, { signal }) => {
    if (existsSync(flags.out)) {
      throw new UsageError(
        `--out: ${flags.out} is there already. Choose another file, or remove that one.`,
      );
    }
    return flags.adapter === undefined
      ? [await writeGguf(flags, signal)]
      : await writeAdapter(flags, flags.adapter, signal);
  },
});

/** Writes the file, whole or not at all; resolves to a line about it. */
async function writeGguf(
  { model, out, type = 'f16' }: ValuesOf<typeof FLAGS>,
  signal: AbortSignal,
): Promise<string> {
  const { path, config } = await findModel(model);
  const texts = await readTexts(path);
  if (!texts.has(TOKENIZER_FILE)) {
    throw new UsageError(
      `--model: ${path} can't be a GGUF, for it has no ${TOKENIZER_FILE}. Put the model's own there; one that learnt bytes has none: train from a --model DIR that has one.`,
    );
  }
  const name = nameOf(path, model);
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

/**
 * Writes adapters alone, and beside them the text from which ollama makes a model of both; resolves
 * to lines about them.
 */
async function writeAdapter(
  { model, out, type = 'f32' }: ValuesOf<typeof FLAGS>,
  adapter: string,
  signal: AbortSignal,
): Promise<string[]> {
  const path = findModelDirectory(resolve(model))?.path ?? model;
  const base = await readModelConfig(path);
  const modelfile = `${out.replace(/\.gguf$/, '')}.Modelfile`;
  if (existsSync(modelfile)) {
    throw new UsageError(
      `--out: ${modelfile}, which is written beside it, is there already. Choose another file, or remove that one.`,
    );
  }
  const directory = findAdapter(adapter);
  const { rank, alpha, layers } = await readAdapter(directory);
  return await withAdapterState(directory, async (state) => {
    const name = basename(out, '.gguf');
    const file = explain(() => adapterGguf({ base, alpha, state }, { type, name }));
    const { byteLength } = file;
    await writeOut(out, (place) => writePieces(place, file.pieces(), { signal, byteLength }));
    writeText(modelfile, `FROM ${ollamaBase(path)}\nADAPTER ./${basename(out)}\n`);
    return [
      `${out}: adapters of ${layers.length} layers of a ${base.model_type}, rank ${rank}, ${type}, ${formatBytes(byteLength)}`,
      `${modelfile}: for ollama create; its first line names the base, for which a GGUF or a model of ollama does, too`,
    ];
  });
}

/** A base as ollama finds it: by its name where no more than a header of it is here. */
function ollamaBase(path: string): string {
  const { repo, file } = parseModelName(hubNameOf(path) ?? '') ?? {};
  return isHead(path) ? `hf.co/${repo}:${file}` : path;
}

/** Makes what llama.cpp has no place for the user's mistake. */
function explain<T>(make: () => T): T {
  try {
    return make();
  } catch (cause) {
    if (cause instanceof GgufError) {
      throw new UsageError(`--adapter: ${cause.message}`, { cause });
    }
    throw cause;
  }
}

/** The name of a model: its own on the Hub, else that of its directory. */
function nameOf(path: string, given: string): string {
  return hubNameOf(path)?.split('@')[0] ?? basename(resolve(given), GGUF_END);
}

async function readTexts(directory: string): Promise<Map<string, string>> {
  if (isGgufFile(directory)) {
    return await ggufTexts(directory);
  }
  const texts = new Map<string, string>();
  for (const name of MODEL_TEXTS) {
    const path = join(directory, name);
    if (existsSync(path)) {
      texts.set(name, await readFile(path, 'utf8'));
    }
  }
  return texts;
}
