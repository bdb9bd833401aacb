// The tokenizer as the metadata from which llama.cpp makes its own.

import { GgufTokenizerError } from '../errors.js';
import type { MetadataValue } from '../gguf-file.js';
import {
  readTokenizerJson,
  readTokenizerSettings,
  type TokenIds,
  type TokenizerJson,
  type TokenizerSettings,
  textOf,
} from '../tokenizer-files.js';
import { preTokenizerOf } from './pre-tokenizer.js';
import { isSentencePiece, sentencePieceMetadata } from './sentence-piece.js';
import { stepsOf } from './steps.js';
import { readVocabulary, type Vocabulary } from './vocabulary.js';
import { isWordPiece, wordPieceMetadata } from './word-piece.js';

/**
 * The keys of `tokenizer`.
 * @throws {GgufTokenizerError} for a tokenizer that llama.cpp has no equivalent of
 */
export function tokenizerMetadata(
  texts: ReadonlyMap<string, string>,
  vocabSize: number,
): Map<string, MetadataValue> {
  const json = readTokenizerJson(texts);
  const settings = readTokenizerSettings(texts);
  const vocabulary = readVocabulary(json, vocabSize);
  if (isWordPiece(json)) {
    return wordPieceMetadata(json, { settings, vocabulary });
  }
  const { tokens } = vocabulary;
  const idOf = (text: string | undefined) => {
    const id = text === undefined ? -1 : tokens.indexOf(text);
    return id < 0 ? undefined : id;
  };
  const ids = specialIds(json, { settings, idOf });
  const metadata = new Map<string, MetadataValue>([
    ...(isSentencePiece(json)
      ? sentencePieceMetadata(json, vocabulary)
      : byteLevelMetadata(json, vocabulary)),
    // A reader of a file without these two numbers takes 11 for both, whatever token that is.
    ['tokenizer.ggml.bos_token_id', { type: 'u32', value: ids.bos ?? ids.eos }],
    ['tokenizer.ggml.eos_token_id', { type: 'u32', value: ids.eos }],
    ['tokenizer.ggml.add_bos_token', { type: 'bool', value: ids.addsBos }],
    ['tokenizer.ggml.add_eos_token', { type: 'bool', value: ids.addsEos }],
  ]);
  if (ids.pad !== undefined) {
    metadata.set('tokenizer.ggml.padding_token_id', { type: 'u32', value: ids.pad });
  }
  if (settings.chatTemplate !== undefined) {
    metadata.set('tokenizer.chat_template', { type: 'string', value: settings.chatTemplate });
  }
  return metadata;
}

function byteLevelMetadata(
  json: TokenizerJson,
  { tokens, types }: Vocabulary,
): readonly (readonly [string, MetadataValue])[] {
  requireByteLevelMerges(json);
  return [
    ['tokenizer.ggml.model', { type: 'string', value: 'gpt2' }],
    ['tokenizer.ggml.pre', { type: 'string', value: preTokenizerOf(json) }],
    ['tokenizer.ggml.tokens', { type: 'string[]', value: tokens }],
    ['tokenizer.ggml.token_type', { type: 'i32[]', value: types }],
    ['tokenizer.ggml.merges', { type: 'string[]', value: mergesOf(json) }],
  ];
}

function requireByteLevelMerges({ model, normalizer }: TokenizerJson): void {
  if (model.type !== 'BPE') {
    throw new GgufTokenizerError(
      `tokenizer.json: expected merges (BPE), got ${model.type ?? 'no model.type'}. Others are not written.`,
    );
  }
  const marked = (['continuing_subword_prefix', 'end_of_word_suffix'] as const).find(
    (name) => (model[name] ?? '') !== '',
  );
  if (marked !== undefined) {
    throw new GgufTokenizerError(
      `tokenizer.json: expected no ${marked}, got ${JSON.stringify(model[marked])}.`,
    );
  }
  const changing = stepsOf(normalizer).find(({ type }) => type !== 'NFC');
  if (changing !== undefined) {
    throw new GgufTokenizerError(
      `tokenizer.json: expected no normalizer but NFC, got ${changing.type}. llama.cpp takes texts as they are.`,
    );
  }
}

function mergesOf({ model }: TokenizerJson): string[] {
  return (model.merges ?? []).map((merge) => (typeof merge === 'string' ? merge : merge.join(' ')));
}

interface SpecialIds {
  readonly bos: number | undefined;
  readonly eos: number;
  readonly pad: number | undefined;
  readonly addsBos: boolean;
  readonly addsEos: boolean;
}

function specialIds(
  json: TokenizerJson,
  {
    settings: { config, ids },
    idOf,
  }: {
    readonly settings: TokenizerSettings;
    readonly idOf: (text: string | undefined) => number | undefined;
  },
): SpecialIds {
  const named = (name: 'bos' | 'eos' | 'pad'): number | undefined => {
    const field = `${name}_token_id` as const satisfies keyof TokenIds;
    const given = ids.map((file) => [file[field] ?? []].flat()[0]);
    return idOf(textOf(config[`${name}_token`])) ?? given.find((id) => id !== undefined);
  };
  const around = tokensAround(json);
  const [bos = named('bos')] = around.before;
  const [eos = named('eos')] = around.after;
  if (eos === undefined) {
    throw new GgufTokenizerError(
      'tokenizer_config.json: expected an eos_token of the vocabulary, got none, and no eos_token_id in generation_config.json or config.json. llama.cpp would end texts at token 11.',
    );
  }
  return {
    bos,
    eos,
    pad: named('pad'),
    addsBos: bos !== undefined && (config.add_bos_token ?? around.before.length > 0),
    addsEos: config.add_eos_token ?? around.after.length > 0,
  };
}

/**
 * The numbers of the tokens that are put before and after each text, at most one on either side.
 */
function tokensAround(json: TokenizerJson): {
  readonly before: readonly number[];
  readonly after: readonly number[];
} {
  const steps = stepsOf(json.post_processor).filter(({ type }) => type !== 'ByteLevel');
  const [template] = steps;
  if (template === undefined) {
    return { before: [], after: [] };
  }
  const single = template.single as readonly TemplatePart[] | undefined;
  const places = single?.map((part) => ('SpecialToken' in part ? part.SpecialToken.id : undefined));
  const text = places?.indexOf(undefined) ?? -1;
  const [before, after] = [places?.slice(0, text) ?? [], places?.slice(text + 1) ?? []];
  if (steps.length > 1 || text < 0 || before.length > 1 || after.length > 1) {
    throw new GgufTokenizerError(
      `tokenizer.json: expected a post_processor that puts at most a token before and one behind a text, got ${JSON.stringify(json.post_processor)}.`,
    );
  }
  const tokens = template.special_tokens as Readonly<Record<string, { ids: readonly number[] }>>;
  const idsOf = (names: readonly (string | undefined)[]) =>
    names.flatMap((name) => tokens[name!]?.ids ?? []);
  return { before: idsOf(before), after: idsOf(after) };
}

/** A placeholder for a text, or a token beside it. */
type TemplatePart =
  | { readonly SpecialToken: { readonly id: string } }
  | { readonly Sequence: { readonly id: string } };
