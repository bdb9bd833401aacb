// The files of sentence-transformers that say how a directory's transformer becomes an embedder:
// modules.json lists modules in order, and the pooling has a config in a folder of its own. The
// transformer's own files are those of any model.

import { checkOptions, FLAG, given, OBJECT, oneOf, optional, whole } from '../check-options.js';
import { FormatError } from '../errors.js';
import type { EmbeddingModelOptions } from './embedding-model.js';
import { POOLINGS, type Pooling } from './pool.js';

/** What these files say of an embedder. */
export interface SentenceTransformersConfig extends EmbeddingModelOptions {
  readonly normalize: boolean;
  /** The width of the rows that are pooled. */
  readonly width: number;
  /** What is put before a text, by the kind of text, such as 'query'. Default none. */
  readonly prompts?: Readonly<Record<string, string>> | undefined;
  /** Whether the pooling counts the prompt's tokens too. Default true. */
  readonly includePrompt?: boolean | undefined;
  /** How embeddings are compared. Default 'cosine'. */
  readonly similarity?: Similarity | undefined;
  /** The most tokens of a text. */
  readonly maxSeqLength?: number | undefined;
}

/** The names of similarities in config_sentence_transformers.json. */
export type Similarity = 'cosine' | 'dot' | 'euclidean' | 'manhattan';

const SIMILARITIES = ['cosine', 'dot', 'euclidean', 'manhattan'] as const satisfies Similarity[];
const MODULES = 'modules.json';
const POOLING = '1_Pooling';
const CONFIG = 'config_sentence_transformers.json';
const TEXTS = 'sentence_bert_config.json';
/** The field of each pooling in the config, and its name in the newer field pooling_mode. */
const MODES = {
  mean: { field: 'pooling_mode_mean_tokens', name: 'mean' },
  cls: { field: 'pooling_mode_cls_token', name: 'cls' },
  last: { field: 'pooling_mode_lasttoken', name: 'lasttoken' },
} as const satisfies Record<Pooling, { readonly field: string; readonly name: string }>;
/** The modules that an EmbeddingModel has, by the last word of their type, in their order. */
const KNOWN = ['Transformer', 'Pooling', 'Normalize'];

type Fields = Readonly<Record<string, unknown>>;

/**
 * Reads the files of a directory that sentence-transformers wrote.
 * @param read gives the text of a file by its path in the directory, undefined where there is none
 * @throws {FormatError} for a file that is missing or malformed, for modules that an EmbeddingModel
 * does not have, such as Dense, and for another pooling
 */
export async function readSentenceTransformers(
  read: (path: string) => Promise<string | undefined>,
): Promise<SentenceTransformersConfig> {
  const { pooling: folder, normalize } = modulesOf(parsed(MODULES, await read(MODULES)));
  const path = `${folder}/config.json`;
  const pooling = fieldsOf(path, parsed(path, await read(path)));
  const [config, texts] = [await optionalFields(read, CONFIG), await optionalFields(read, TEXTS)];
  const width = numberOf(path, pooling, 'word_embedding_dimension');
  if (width === undefined) {
    throw new FormatError(`${path}: expected word_embedding_dimension, got none.`);
  }
  const similarity = config.similarity_fn_name ?? undefined;
  if (similarity !== undefined && !SIMILARITIES.includes(similarity as Similarity)) {
    throw new FormatError(
      `${CONFIG}: expected similarity_fn_name to be ${SIMILARITIES.join(', ')}, got ${JSON.stringify(similarity)}.`,
    );
  }
  return {
    pooling: poolingOf(path, pooling),
    normalize,
    width,
    includePrompt: pooling.include_prompt !== false,
    ...given({
      prompts: promptsOf(config.prompts),
      similarity: similarity as Similarity | undefined,
      maxSeqLength: numberOf(TEXTS, texts, 'max_seq_length'),
    }),
  };
}

/** One of sentence-transformers' files. */
export interface SentenceTransformersFile {
  /** Its path in the model's directory. Its folder may have to be made. */
  readonly path: string;
  readonly text: string;
}

/**
 * The files that make an embedder of a directory with a model's files, in the order in which to
 * write them: modules.json, by which such a directory is known, is the last. `dimensions` has no
 * field in them: pass it as truncate_dim where the directory is read.
 * @throws {NnConfigError} for a config that cannot work
 */
export function sentenceTransformersFiles(
  config: SentenceTransformersConfig,
): readonly SentenceTransformersFile[] {
  checkOptions<SentenceTransformersConfig>('sentenceTransformersFiles', config, {
    pooling: oneOf(...POOLINGS),
    normalize: FLAG,
    dimensions: optional(whole(1)),
    width: whole(1),
    prompts: optional(OBJECT),
    includePrompt: optional(FLAG),
    similarity: optional(oneOf(...SIMILARITIES)),
    maxSeqLength: optional(whole(1)),
  });
  const { pooling, normalize, width, prompts = {}, similarity = 'cosine', maxSeqLength } = config;
  const modes = Object.entries(MODES).map(([kind, { field }]) => [field, kind === pooling]);
  const paths = ['', POOLING, ...(normalize ? ['2_Normalize'] : [])];
  const file = (path: string, value: object) => ({
    path,
    text: `${JSON.stringify(value, undefined, 2)}\n`,
  });
  return [
    file(`${POOLING}/config.json`, {
      word_embedding_dimension: width,
      ...Object.fromEntries(modes),
      include_prompt: config.includePrompt ?? true,
    }),
    file(CONFIG, { prompts, default_prompt_name: null, similarity_fn_name: similarity }),
    ...(maxSeqLength === undefined
      ? []
      : [file(TEXTS, { max_seq_length: maxSeqLength, do_lower_case: false })]),
    file(
      MODULES,
      paths.map((path, idx) => ({
        idx,
        name: String(idx),
        path,
        type: `sentence_transformers.models.${KNOWN[idx]}`,
      })),
    ),
  ];
}

/** The pooling's folder, and whether rows are normalized, of the list in modules.json. */
function modulesOf(list: unknown): { readonly pooling: string; readonly normalize: boolean } {
  if (!Array.isArray(list)) {
    throw new FormatError(`${MODULES}: expected a list of modules.`);
  }
  const modules = list.map((value: unknown) => {
    const { type, path } = fieldsOf(MODULES, value);
    if (typeof type !== 'string' || typeof path !== 'string') {
      throw new FormatError(`${MODULES}: expected a type and a path of each module.`);
    }
    return { kind: type.slice(type.lastIndexOf('.') + 1), path };
  });
  const kinds = modules.map(({ kind }) => kind);
  const strange = kinds.find((kind, i) => kind !== KNOWN[i]);
  if (strange !== undefined || kinds.length < 2) {
    throw new FormatError(
      `${MODULES}: expected the modules Transformer, Pooling and perhaps Normalize, got ${kinds.join(', ') || 'none'}.${strange !== undefined && !KNOWN.includes(strange) ? ` ${strange} is not supported.` : ''}`,
    );
  }
  if (modules[0]!.path !== '') {
    throw new FormatError(
      `${MODULES}: expected the Transformer in the directory itself, got '${modules[0]!.path}'.`,
    );
  }
  return { pooling: modules[1]!.path, normalize: kinds.length === 3 };
}

/** The only pooling that a config asks for, by flags or by name. */
function poolingOf(path: string, fields: Fields): Pooling {
  const flags = Object.keys(fields).filter(
    (field) => field.startsWith('pooling_mode_') && fields[field] === true,
  );
  const { pooling_mode: named } = fields;
  const asked = named === undefined ? flags : [...flags, named];
  const isAskedBy = (kind: Pooling, word: unknown): boolean =>
    word === MODES[kind].field || word === MODES[kind].name;
  const found = POOLINGS.filter((kind) => asked.some((word) => isAskedBy(kind, word)));
  if (found.length !== 1 || !asked.every((word) => isAskedBy(found[0]!, word))) {
    const got = asked.map(String).join(', ');
    throw new FormatError(
      `${path}: expected one of ${POOLINGS.map((kind) => MODES[kind].field).join(', ')}, got ${got || 'none'}. Other poolings are not supported.`,
    );
  }
  return found[0]!;
}

function promptsOf(value: unknown): Readonly<Record<string, string>> | undefined {
  if (value === undefined || value === null) {
    return undefined;
  }
  const prompts = fieldsOf(CONFIG, value);
  if (!Object.values(prompts).every((text) => typeof text === 'string')) {
    throw new FormatError(`${CONFIG}: expected prompts to be texts by name.`);
  }
  return prompts as Readonly<Record<string, string>>;
}

async function optionalFields(
  read: (path: string) => Promise<string | undefined>,
  path: string,
): Promise<Fields> {
  const text = await read(path);
  return text === undefined ? {} : fieldsOf(path, parsed(path, text));
}

function parsed(path: string, text: string | undefined): unknown {
  if (text === undefined) {
    throw new FormatError(`expected ${path}, got no such file. sentence-transformers writes it.`);
  }
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new FormatError(`${path}: expected JSON.`, { cause: error });
  }
}

function fieldsOf(path: string, value: unknown): Fields {
  if (!OBJECT.holds(value)) {
    throw new FormatError(`${path}: expected an object.`);
  }
  return value as Fields;
}

function numberOf(path: string, fields: Fields, name: string): number | undefined {
  const value = fields[name] ?? undefined;
  if (value !== undefined && !whole(1).holds(value)) {
    throw new FormatError(
      `${path}: expected ${name} to be ${whole(1).expected}, got ${JSON.stringify(value)}.`,
    );
  }
  return value as number | undefined;
}
