// The files of a tokenizer in a model directory of the Hugging Face layout. A field that a file
// lacks is absent, and other fields are left alone.

import { GgufTokenizerError } from './errors.js';

/** A token beside those of the vocabulary's merges, such as the end of a text. */
export interface AddedToken {
  readonly id: number;
  readonly content: string;
  readonly special?: boolean;
  /** Whether it is looked for in the normalized text; by default, where it is not special. */
  readonly normalized?: boolean;
  readonly lstrip?: boolean;
  readonly rstrip?: boolean;
  readonly single_word?: boolean;
}

/** A part of a pipeline: a normalizer, a pre-tokenizer or a post-processor. */
export interface PipelineStep {
  readonly type: string;
  readonly [field: string]: unknown;
}

/** tokenizer.json. */
export interface TokenizerJson {
  readonly added_tokens?: readonly AddedToken[];
  readonly normalizer?: PipelineStep | null;
  readonly pre_tokenizer?: PipelineStep | null;
  readonly post_processor?: PipelineStep | null;
  readonly model: {
    readonly type?: string;
    readonly vocab: Readonly<Record<string, number>>;
    readonly merges?: readonly (string | readonly [left: string, right: string])[];
    readonly byte_fallback?: boolean;
    readonly ignore_merges?: boolean;
    readonly continuing_subword_prefix?: string | null;
    readonly end_of_word_suffix?: string | null;
    readonly unk_token?: string | null;
  };
}

/** A token as configs write it. */
export type TokenText = string | { readonly content: string } | null;

/** tokenizer_config.json. */
export interface TokenizerConfig {
  readonly bos_token?: TokenText;
  readonly eos_token?: TokenText;
  readonly pad_token?: TokenText;
  readonly unk_token?: TokenText;
  readonly mask_token?: TokenText;
  /** Whether white space is trimmed, as XLM does. */
  readonly remove_space?: boolean;
  /**
   * Whether a token is put at the beginning. This and the next field override what tokenizer.json
   * says.
   */
  readonly add_bos_token?: boolean | null;
  readonly add_eos_token?: boolean | null;
  readonly chat_template?:
    | string
    | readonly { readonly name: string; readonly template: string }[]
    | null;
}

/** The ids that generation_config.json and config.json name. */
export interface TokenIds {
  readonly bos_token_id?: number | null;
  readonly eos_token_id?: number | readonly number[] | null;
  readonly pad_token_id?: number | null;
}

/** What the files beside tokenizer.json say. */
export interface TokenizerSettings {
  readonly config: TokenizerConfig;
  /** The ids of both files; the file that counts more comes first. */
  readonly ids: readonly TokenIds[];
  /** The template by which conversations are written. */
  readonly chatTemplate: string | undefined;
}

/**
 * Reads tokenizer.json out of a model directory's texts by file name.
 * @throws {GgufTokenizerError} where it is missing, or is not a tokenizer
 */
export function readTokenizerJson(texts: ReadonlyMap<string, string>): TokenizerJson {
  if (!texts.has('tokenizer.json')) {
    throw new GgufTokenizerError('tokenizer.json: expected one in the model directory, got none.');
  }
  const json = parse(texts, 'tokenizer.json') as unknown as TokenizerJson;
  if (typeof json.model?.vocab !== 'object') {
    throw new GgufTokenizerError('tokenizer.json: expected model.vocab, got none.');
  }
  return json;
}

/**
 * Reads the files beside tokenizer.json, as far as they are among a model directory's texts by file
 * name: tokenizer_config.json, generation_config.json, config.json and chat_template.jinja.
 * @throws {GgufTokenizerError} where a file is not a JSON object
 */
export function readTokenizerSettings(texts: ReadonlyMap<string, string>): TokenizerSettings {
  const config = parse(texts, 'tokenizer_config.json') as TokenizerConfig;
  const { chat_template: own } = config;
  return {
    config,
    ids: ['generation_config.json', 'config.json'].map((name) => parse(texts, name) as TokenIds),
    chatTemplate:
      texts.get('chat_template.jinja') ??
      (typeof own === 'string' ? own : own?.find(({ name }) => name === 'default')?.template),
  };
}

/** The text of a token of a config. */
export function textOf(token: TokenText | undefined): string | undefined {
  return typeof token === 'string' ? token : token?.content;
}

function parse(texts: ReadonlyMap<string, string>, name: string): object {
  let value: unknown;
  try {
    value = JSON.parse(texts.get(name) ?? '{}');
  } catch (error) {
    const { message } = error as SyntaxError;
    throw new GgufTokenizerError(`${name}: expected JSON (${message}).`, { cause: error });
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new GgufTokenizerError(`${name}: expected an object.`);
  }
  return value;
}
