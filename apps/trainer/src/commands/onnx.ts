// The command `onnx`: writes a text encoder or a classifier as the folder that transformers.js
// loads, and says with which calls.

import { basename, dirname, join } from 'node:path';
import { encoderParameterCount, type SentenceTransformersConfig } from '@shardweave/nn/embedding';
import { ONNX_TEXTS, type OnnxDType, OnnxError, type OnnxTask, onnxFiles } from '@shardweave/onnx';
import { UsageError } from '../errors.js';
import { isGgufFile } from '../files/gguf-model.js';
import { readTexts } from '../files/read-texts.js';
import { textFile, writeDirectory } from '../files/write-file.js';
import { flag, needed, type ValuesOf } from '../flags/flag.js';
import { file, someOf } from '../flags/flag-kinds.js';
import { formatBytes, formatCount } from '../format.js';
import { hubNameOf } from '../hub/hub-name.js';
import {
  type EncoderParts,
  embedderTexts,
  type ModelKind,
  readEmbedder,
  readModelKind,
  withEncoder,
} from '../model/encoder-directory.js';
import { findWeights } from '../model/model-directory.js';
import { defineWriter, QUIET } from './define-command.js';
import { requireNewDirectory, writeOut } from './new-directory.js';

/** The types of files, and what transformers.js calls them. */
const DTYPES = { f32: 'fp32', f16: 'fp16', q8: 'q8' } as const satisfies Record<OnnxDType, string>;
const TOKENIZER_CONFIG = 'tokenizer_config.json';
/** The texts that are written where a model has them; transformers.js needs those of ONNX_TEXTS. */
const TEXTS = [...ONNX_TEXTS, 'special_tokens_map.json'];

const FLAGS = {
  model: needed(file, [
    '--model <DIR|ORG/NAME>',
    'a BERT, an embedder or a classifier: config.json, model.safetensors and its tokenizer, or a run; or a model of the Hub',
  ]),
  out: needed(file, ['--out <DIR>', 'a new directory']),
  dtype: flag(someOf(['f32', 'f16', 'q8']), undefined, [
    '--dtype <f32|f16|q8,...>',
    'of the files in it, of which a program loads one (default: f32,q8)',
  ]),
  quiet: QUIET,
};

/** The command `onnx`. */
export const onnx = defineWriter({
  name: 'onnx',
  description:
    'Writes a text encoder or a classifier as the folder that transformers.js loads, in pages and in Node.',
  flags: FLAGS,
  model: 'weights',
  examples: [
    {
      line: 'onnx --model models/embedder --out models/embedder-onnx',
      says: 'an embedder in f32 and in 8 bits, its tokenizer and pooling beside them',
    },
    {
      line: 'onnx --model models/classifier --out models/classifier-onnx --dtype q8',
      says: 'a classifier in 8 bits alone',
    },
  ],
  write: async (flags, { signal }) => {
    requireNewDirectory(flags.out);
    const path = findWeights(flags.model);
    const kind = await readModelKind(path);
    refuseDecoders(path, kind);
    return await writeFolder(flags, { path, kind, signal });
  },
});

/** Writes the folder, whole or not at all; resolves to lines about it. */
async function writeFolder(
  { out, dtype: dtypes = ['f32', 'q8'] }: ValuesOf<typeof FLAGS>,
  {
    path,
    kind,
    signal,
  }: { readonly path: string; readonly kind: ModelKind; readonly signal: AbortSignal },
): Promise<readonly string[]> {
  const task: OnnxTask = kind.classifier === undefined ? 'feature-extraction' : CLASSIFY;
  const embedder = task === CLASSIFY ? undefined : await readEmbedder(path, kind);
  const texts = await readTexts(path, TEXTS);
  return await withEncoder(path, kind, async ({ config, state, labels }) => {
    const most = Math.min(
      config.max_position_embeddings,
      embedder?.maxSeqLength ?? Number.POSITIVE_INFINITY,
    );
    cutAtLength(texts, most, path);
    const beside = embedder === undefined ? [] : await embedderFiles(path);
    const files = await explain(path, async () => {
      const made = onnxFiles({ texts, state }, { task, dtypes });
      await writeOut(out, (place) => writeDirectory(place, [...made, ...beside], { signal }));
      return made;
    });
    const sizes = files
      .filter(({ name }) => name.endsWith('.onnx'))
      .map(({ name, byteLength }) => `${name} ${formatBytes(byteLength)}`);
    const parameters = formatCount(encoderParameterCount(config));
    return [
      `${out}: ${config.model_type}, ${parameters} parameters, ${sizes.join(', ')}`,
      ...calls({ out, dtypes, labels, embedder }),
    ];
  });
}

const CLASSIFY = 'text-classification';

/** @throws {UsageError} for what is no encoder */
function refuseDecoders(path: string, { type, isEncoder, classifier }: ModelKind): void {
  if (isEncoder) {
    return;
  }
  const isGguf = isGgufFile(path);
  const what = classifier ?? type ?? (isGguf ? 'GGUF file' : 'model of no model_type');
  const others = `shardweave gguf --model ${hubNameOf(path) ?? path} --out FILE writes it for llama.cpp`;
  const hint = isGguf
    ? 'Give the directory that it was made from.'
    : classifier === undefined
      ? `A decoder has another way: ${others}.`
      : 'Classifiers on decoders are not written.';
  throw new UsageError(
    `--model: expected a text encoder (a BERT, such as MiniLM, BGE or E5), got ${path}, a ${what}. ${hint}`,
  );
}

/**
 * Lets transformers.js cut texts where the model does: it knows no other file that says so, and
 * behind the last position it would fail.
 */
function cutAtLength(texts: Map<string, string>, most: number, path: string): void {
  const text = texts.get(TOKENIZER_CONFIG);
  if (text === undefined) {
    return; // onnxFiles says that it is missing
  }
  let fields: { readonly model_max_length?: unknown };
  try {
    fields = Object(JSON.parse(text));
  } catch (cause) {
    throw new UsageError(
      `--model: ${join(path, TOKENIZER_CONFIG)} can't be used (${(cause as Error).message}). Give a directory with the tokenizer that it came with.`,
      { cause },
    );
  }
  const { model_max_length: own } = fields;
  if (typeof own !== 'number' || own > most) {
    const all = { ...fields, model_max_length: most };
    texts.set(TOKENIZER_CONFIG, `${JSON.stringify(all, undefined, 2)}\n`);
  }
}

/** The files that say how an embedder pools, which transformers.js passes over. */
async function embedderFiles(path: string) {
  return [...(await embedderTexts(path))].map(([name, text]) => textFile(name, text));
}

/** What to type in transformers.js. */
function calls({
  out,
  dtypes,
  labels,
  embedder,
}: {
  readonly out: string;
  readonly dtypes: readonly OnnxDType[];
  readonly labels: EncoderParts['labels'];
  readonly embedder: SentenceTransformersConfig | undefined;
}): string[] {
  const name = JSON.stringify(basename(out));
  const dtype = DTYPES[dtypes.includes('q8') ? 'q8' : dtypes[0]!];
  const model = `${name}, { dtype: '${dtype}' }`;
  const where = `in transformers.js, with env.localModelPath = ${JSON.stringify(`${dirname(out)}/`)}:`;
  if (labels === undefined) {
    return [
      where,
      `  const embed = await pipeline('feature-extraction', ${model});`,
      ...embedding(embedder),
    ];
  }
  if (labels.length > 1) {
    return [
      where,
      `  const classify = await pipeline('${CLASSIFY}', ${model});`,
      `  const labels = await classify(texts); // ${labels.length} of them`,
    ];
  }
  // The pipeline's softmax makes 1 of a single number, and it takes no pairs.
  return [
    where,
    `  const tokenizer = await AutoTokenizer.from_pretrained(${name});`,
    `  const model = await AutoModelForSequenceClassification.from_pretrained(${model});`,
    '  const pairs = tokenizer(queries, { text_pair: texts, padding: true, truncation: true });',
    '  const { logits } = await model(pairs); // a score a pair',
  ];
}

/** The call of the pipeline, and what it does not do by itself. */
function embedding(embedder: SentenceTransformersConfig | undefined): string[] {
  const { pooling = 'mean', normalize = true, prompts = {} } = embedder ?? {};
  const own = pooling === 'last' ? 'last_token' : pooling;
  const input = pooling === 'last' ? 'text' : 'texts';
  const given = Object.entries(prompts).filter(([, text]) => text !== '');
  return [
    `  const rows = await embed(${input}, { pooling: '${own}', normalize: ${normalize} });`,
    ...(pooling === 'last' ? ['one text a call, for padding would be its last token'] : []),
    ...(embedder === undefined ? ['no modules.json says how it pools; mean is usual'] : []),
    ...given.map(([kind, text]) => `before a text of kind ${kind}: ${JSON.stringify(text)}`),
  ];
}

/** Makes what can't be written the user's mistake. */
async function explain<T>(path: string, make: () => Promise<T>): Promise<T> {
  try {
    return await make();
  } catch (cause) {
    if (cause instanceof OnnxError) {
      throw new UsageError(`--model: ${path} can't be ONNX. ${cause.message}`, { cause });
    }
    throw cause;
  }
}
