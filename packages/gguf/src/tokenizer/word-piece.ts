// WordPiece, the tokenizer of BERT and its kin. llama.cpp marks what begins a word, where
// tokenizer.json marks what continues one: 'ship', '##ment' become '\u2581ship', 'ment'.

import { GgufTokenizerError } from '../errors.js';
import type { MetadataValue } from '../gguf-file.js';
import {
  type PipelineStep,
  type TokenizerJson,
  type TokenizerSettings,
  textOf,
} from '../tokenizer-files.js';
import { SPACE } from './sentence-piece.js';
import { stepsOf } from './steps.js';
import { TOKEN_TYPE, type Vocabulary } from './vocabulary.js';

/** What continues a word begins with it. */
const CONTINUING = '##';

export function isWordPiece({ model }: TokenizerJson): boolean {
  return model.type === 'WordPiece';
}

/**
 * The keys of `tokenizer`. llama.cpp knows no limit to a word's length, beyond which tokenizer.json
 * makes one unknown token of it (100 characters).
 * @throws {GgufTokenizerError} for a vocabulary or steps with which llama.cpp would make other
 * tokens
 */
export function wordPieceMetadata(
  json: TokenizerJson,
  {
    settings,
    vocabulary,
  }: { readonly settings: TokenizerSettings; readonly vocabulary: Vocabulary },
): Map<string, MetadataValue> {
  const { tokens, types } = vocabulary;
  const { lowercase, stripAccents } = normalizerOf(json);
  requireSteps(json);
  const idOf = (what: string, text: string | null | undefined): number => {
    const id = tokens.indexOf(text ?? '');
    if (id < 0) {
      throw new GgufTokenizerError(
        `tokenizer.json: expected ${what} among the tokens, got ${JSON.stringify(text ?? null)}.`,
      );
    }
    return id;
  };
  const { cls, sep } = textsAround(json);
  const [clsId, sepId] = [idOf('the token before a text', cls), idOf('the token after it', sep)];
  const { pad_token: pad = null, mask_token: mask = null } = settings.config;
  const optional = [
    ['tokenizer.ggml.padding_token_id', textOf(pad)],
    ['tokenizer.ggml.mask_token_id', textOf(mask)],
  ] as const;
  return new Map<string, MetadataValue>([
    ['tokenizer.ggml.model', { type: 'string', value: 'bert' }],
    ['tokenizer.ggml.pre', { type: 'string', value: 'default' }],
    ['tokenizer.ggml.tokens', { type: 'string[]', value: markedTokens(vocabulary) }],
    ['tokenizer.ggml.token_type', { type: 'i32[]', value: types }],
    ['tokenizer.ggml.normalizer.lowercase', { type: 'bool', value: lowercase }],
    ['tokenizer.ggml.normalizer.strip_accents', { type: 'bool', value: stripAccents }],
    ['tokenizer.ggml.unknown_token_id', u32(idOf('unk_token', json.model.unk_token))],
    ['tokenizer.ggml.bos_token_id', u32(clsId)],
    ['tokenizer.ggml.eos_token_id', u32(sepId)],
    ['tokenizer.ggml.cls_token_id', u32(clsId)],
    ['tokenizer.ggml.seperator_token_id', u32(sepId)], // llama.cpp's spelling
    ['tokenizer.ggml.add_bos_token', { type: 'bool', value: true }],
    ['tokenizer.ggml.add_sep_token', { type: 'bool', value: true }],
    ...optional.flatMap(([key, text]) =>
      text === undefined || !tokens.includes(text)
        ? []
        : [[key, u32(tokens.indexOf(text))] as const],
    ),
  ]);
}

/** The tokens as llama.cpp has them; special ones stay. */
function markedTokens({ tokens, types }: Vocabulary): string[] {
  const marked = tokens.map((text, id) => {
    if (types[id] !== TOKEN_TYPE.normal) {
      return text;
    }
    return text.startsWith(CONTINUING) ? text.slice(CONTINUING.length) : SPACE + text;
  });
  const places = new Map<string, number>();
  for (const [id, text] of marked.entries()) {
    const other = places.get(text);
    if (other !== undefined) {
      throw new GgufTokenizerError(
        `tokenizer.json: expected tokens that differ in llama.cpp, too, got ${JSON.stringify(tokens[other])} and ${JSON.stringify(tokens[id])}.`,
      );
    }
    places.set(text, id);
  }
  return marked;
}

function normalizerOf(json: TokenizerJson): {
  readonly lowercase: boolean;
  readonly stripAccents: boolean;
} {
  const steps = stepsOf(json.normalizer);
  const [step] = steps as readonly [PipelineStep | undefined];
  const isKnown =
    steps.length === 1 &&
    step?.type === 'BertNormalizer' &&
    step.clean_text === true &&
    step.handle_chinese_chars === true;
  if (!isKnown) {
    throw new GgufTokenizerError(
      `tokenizer.json: expected a BertNormalizer with clean_text and handle_chinese_chars beside WordPiece, got ${JSON.stringify(json.normalizer ?? null)}. llama.cpp would normalize texts in another way.`,
    );
  }
  const lowercase = step.lowercase === true;
  return { lowercase, stripAccents: (step.strip_accents ?? lowercase) === true };
}

function requireSteps({ model, pre_tokenizer: preTokenizer }: TokenizerJson): void {
  const steps = stepsOf(preTokenizer);
  if (steps.length !== 1 || steps[0]!.type !== 'BertPreTokenizer') {
    throw new GgufTokenizerError(
      `tokenizer.json: expected the BertPreTokenizer beside WordPiece, got ${JSON.stringify(preTokenizer ?? null)}. llama.cpp would cut texts in another way.`,
    );
  }
  if (model.continuing_subword_prefix !== CONTINUING) {
    throw new GgufTokenizerError(
      `tokenizer.json: expected continuing_subword_prefix to be ${CONTINUING} beside WordPiece, got ${JSON.stringify(model.continuing_subword_prefix ?? null)}.`,
    );
  }
}

/** The tokens that are put around a text, which llama.cpp does in any case. */
function textsAround({ post_processor: processor }: TokenizerJson): {
  readonly cls: string;
  readonly sep: string;
} {
  const [step] = stepsOf(processor) as readonly [PipelineStep | undefined];
  const single = step?.single as readonly Readonly<Record<string, { id: string }>>[] | undefined;
  const [cls, text, sep, ...others] =
    step?.type === 'BertProcessing'
      ? [(step.cls as readonly string[])[0], 'A', (step.sep as readonly string[])[0]]
      : (single ?? []).map((part) => part.SpecialToken?.id ?? part.Sequence?.id);
  if (cls === undefined || text !== 'A' || sep === undefined || others.length > 0) {
    throw new GgufTokenizerError(
      `tokenizer.json: expected a post_processor that puts one token before a text and one behind it, got ${JSON.stringify(processor ?? null)}. llama.cpp does.`,
    );
  }
  return { cls, sep };
}

function u32(value: number): MetadataValue {
  return { type: 'u32', value };
}
