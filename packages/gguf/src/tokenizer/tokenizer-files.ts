// The files of a tokenizer as far as a GGUF needs them. A field that a file lacks is absent, and
// other fields are left alone.

import { GgufTokenizerError } from '../errors.js';

export interface AddedToken {
  readonly id: number;
  readonly content: string;
  readonly special?: boolean;
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
type TokenText = string | { readonly content: string } | null;

/** tokenizer_config.json. */
export interface TokenizerConfig {
  readonly bos_token?: TokenText;
  readonly eos_token?: TokenText;
  readonly pad_token?: TokenText;
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

export interface TokenizerFiles {
  readonly json: TokenizerJson;
  readonly config: TokenizerConfig;
  /** The ids of both files; the file that counts more comes first. */
  readonly ids: readonly TokenIds[];
  /** The template by which conversations are written. */
  readonly chatTemplate: string | undefined;
}

/** @throws {GgufTokenizerError} where tokenizer.json is missing, or a file is not a JSON object */
export function readTokenizerFiles(texts: ReadonlyMap<string, string>): TokenizerFiles {
  if (!texts.has('tokenizer.json')) {
    throw new GgufTokenizerError(
      'tokenizer.json: expected one in the model directory, got none. A GGUF holds its tokenizer.',
    );
  }
  const json = parse(texts, 'tokenizer.json') as unknown as TokenizerJson;
  if (typeof json.model?.vocab !== 'object') {
    throw new GgufTokenizerError('tokenizer.json: expected model.vocab, got none.');
  }
  const config = parse(texts, 'tokenizer_config.json') as TokenizerConfig;
  const { chat_template: own } = config;
  return {
    json,
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

/** A step as a list of one; for a sequence the steps in it, in their order. */
export function stepsOf(step: PipelineStep | null | undefined): readonly PipelineStep[] {
  if (!step) {
    return [];
  }
  if (step.type !== 'Sequence') {
    return [step];
  }
  const parts = step.pretokenizers ?? step.normalizers ?? step.processors;
  return ((parts ?? []) as readonly PipelineStep[]).flatMap(stepsOf);
}

function parse(texts: ReadonlyMap<string, string>, name: string): object {
  let value: unknown;
  try {
    value = JSON.parse(texts.get(name) ?? '{}');
  } catch (error) {
    throw new GgufTokenizerError(`${name}: expected JSON.`, { cause: error });
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new GgufTokenizerError(`${name}: expected an object.`);
  }
  return value;
}
