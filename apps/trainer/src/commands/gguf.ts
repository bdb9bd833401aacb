// The command `gguf`: writes a model directory as one file that llama.cpp runs, or adapters as one
// that it loads beside their base.

import { existsSync } from 'node:fs';
import { basename, resolve } from 'node:path';
import {
  adapterGguf,
  GGUF_TYPES,
  GgufError,
  MODEL_TEXTS,
  type ModelGguf,
  modelGguf,
} from '@shardweave/gguf';
import { type ModelConfig, parameterCount } from '@shardweave/nn';
import { encoderParameterCount } from '@shardweave/nn/embedding';
import { TOKENIZER_FILE } from '../data/tokenizer.js';
import { UsageError } from '../errors.js';
import { GGUF_END, ggufTexts, isGgufFile } from '../files/gguf-model.js';
import { readTexts } from '../files/read-texts.js';
import { writePieces, writeText } from '../files/write-file.js';
import { flag, needed, type ValuesOf } from '../flags/flag.js';
import { file, oneOf } from '../flags/flag-kinds.js';
import { formatBytes, formatCount } from '../format.js';
import { hubNameOf, isHead } from '../hub/hub-name.js';
import { parseModelName } from '../hub/model-name.js';
import { findAdapter, readAdapter, withAdapterState } from '../model/adapter-directory.js';
import {
  type ModelKind,
  readEmbedder,
  readModelKind,
  withEncoder,
} from '../model/encoder-directory.js';
import {
  findModelDirectory,
  findWeights,
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
      ? await writeGguf(flags, signal)
      : await writeAdapter(flags, flags.adapter, signal);
  },
});

/** Writes the file, whole or not at all; resolves to lines about it. */
async function writeGguf(
  { model, out, type = 'f16' }: ValuesOf<typeof FLAGS>,
  signal: AbortSignal,
): Promise<string[]> {
  const path = findWeights(model);
  const kind = await readModelKind(path);
  refuseClassifiers(path, kind);
  const decoder = kind.isEncoder ? undefined : await readModelConfig(path);
  const texts = isGgufFile(path) ? await ggufTexts(path) : await readTexts(path, MODEL_TEXTS);
  if (!texts.has(TOKENIZER_FILE)) {
    throw new UsageError(
      `--model: ${path} can't be a GGUF, for it has no ${TOKENIZER_FILE}. Put the model's own there; one that learnt bytes has none: train from a --model DIR that has one.`,
    );
  }
  const embedder = await readEmbedder(path, kind);
  const pooling = embedder?.pooling;
  const name = nameOf(path, model);
  return await withParts(path, { kind, decoder }, async ({ type: family, state, count }) => {
    try {
      const file = modelGguf({ texts, state }, { type, name, pooling });
      const { byteLength } = file;
      await writeOut(out, (path) => writePieces(path, file.pieces(), { signal, byteLength }));
      const parameters = formatCount(count);
      const how = pooling === undefined ? '' : `, pooling ${pooling}`;
      return [
        `${out}: ${family}, ${parameters} parameters, ${type}${how}, ${formatBytes(byteLength)}`,
        ...(kind.isEncoder && pooling === undefined ? [NO_POOLING] : []),
      ];
    } catch (cause) {
      if (cause instanceof GgufError) {
        throw new UsageError(`--model: ${path} can't be a GGUF. ${cause.message}`, { cause });
      }
      throw cause;
    }
  });
}

const NO_POOLING =
  'it gives a row for each token, as llama.cpp converts an encoder without modules.json: pass --pooling mean (or cls) to its programs';

/** @throws {UsageError} for a classifier on an encoder */
function refuseClassifiers(path: string, { isEncoder, classifier }: ModelKind): void {
  if (isEncoder && classifier !== undefined) {
    throw new UsageError(
      `--model: ${path} is a classifier (${classifier}), whose labels have no place in a GGUF. For transformers.js: shardweave onnx --model ${hubNameOf(path) ?? path} --out DIR.`,
    );
  }
}

interface Parts {
  /** The model_type. */
  readonly type: string;
  readonly state: ModelGguf['state'];
  /** The number of its parameters. */
  readonly count: number;
}

/** Hands the parts of a model to `use`, be it an encoder or a language model. */
async function withParts<T>(
  path: string,
  { kind, decoder }: { readonly kind: ModelKind; readonly decoder: ModelConfig | undefined },
  use: (parts: Parts) => Promise<T>,
): Promise<T> {
  if (decoder === undefined) {
    return await withEncoder(path, kind, ({ config, state }) =>
      use({ type: config.model_type, state, count: encoderParameterCount(config) }),
    );
  }
  return await withModelState(path, decoder, (state) =>
    use({ type: decoder.model_type, state, count: parameterCount(decoder) }),
  );
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
