// A file's tokenizer as the texts of a model directory on the Hub: tokenizer.json and
// tokenizer_config.json. It is the way back from tokenizer-metadata.ts.

import { GgufTokenizerError } from '../errors.js';
import { preTokenizerSteps } from '../tokenizer/pre-tokenizer.js';
import { SPACE } from '../tokenizer/sentence-piece.js';
import { TOKEN_TYPE, type Vocabulary } from '../tokenizer/vocabulary.js';
import type {
  AddedToken,
  PipelineStep,
  TokenizerConfig,
  TokenizerJson,
} from '../tokenizer-files.js';
import type { GgufValue } from './metadata-values.js';
import type { Gguf } from './open-gguf.js';
import { scoredMerges } from './scored-merges.js';

/** The values of `tokenizer.ggml`, by the last part of their names. */
class TokenizerKeys {
  readonly #metadata: ReadonlyMap<string, GgufValue>;

  constructor(metadata: ReadonlyMap<string, GgufValue>) {
    this.#metadata = metadata;
  }

  get<T extends GgufValue['type']>(key: string, ...types: readonly T[]) {
    const found = this.#metadata.get(`tokenizer.ggml.${key}`);
    if (found !== undefined && !types.includes(found.type as T)) {
      throw new GgufTokenizerError(
        `tokenizer.ggml.${key}: expected ${types.join(' or ')}, got ${found.type}.`,
      );
    }
    return found?.value as Extract<GgufValue, { readonly type: T }>['value'] | undefined;
  }

  /** A list with a value for each token, or for none. */
  list<T extends GgufValue['type']>(key: string, type: T, length: number) {
    const values = this.get(key, type) as readonly unknown[] | undefined;
    if (values !== undefined && values.length !== length) {
      throw new GgufTokenizerError(
        `tokenizer.ggml.${key}: expected one for each of ${length} tokens, got ${values.length}.`,
      );
    }
    return values as Extract<GgufValue, { readonly type: T }>['value'] | undefined;
  }
}

/**
 * The texts of a tokenizer by file name; empty where the file has no tokenizer. Conversations are
 * written by the file's template, where it has one.
 *
 * llama.cpp takes texts as they are, and the tokenizer of Qwen composes characters first (NFC), as
 * the model was trained: texts that are not composed get other tokens here than there.
 * @throws {GgufTokenizerError} for a kind of tokenizer, or a way to cut texts, that is not known
 * here, and for lists that do not fit each other
 * @example
 * ```ts
 * import { ggufTokenizerTexts, openGguf } from '@shardweave/gguf/read';
 * import { readTokenizerJson } from '@shardweave/gguf/tokenizer-files';
 * import type { ByteSource } from '@shardweave/nn';
 *
 * async function vocabularyOf(source: ByteSource) {
 *   const texts = ggufTokenizerTexts(await openGguf(source));
 *   return readTokenizerJson(texts).model.vocab;
 * }
 * ```
 */
export function ggufTokenizerTexts({ metadata }: Gguf): Map<string, string> {
  const keys = new TokenizerKeys(metadata);
  const kind = keys.get('model', 'string') ?? 'no_vocab';
  if (kind === 'no_vocab' || kind === 'none') {
    return new Map();
  }
  const read = KINDS.get(kind);
  if (read === undefined) {
    throw new GgufTokenizerError(
      `tokenizer.ggml.model: expected ${[...KINDS.keys()].join(' or ')}, got ${JSON.stringify(kind)}. Tokenizers of another kind are not read.`,
    );
  }
  const vocabulary = readVocabulary(keys);
  const { json, addsBos } = read(keys, vocabulary);
  const specials = readSpecials(keys, { vocabulary, addsBos });
  const { config, around } = specials;
  const template = metadata.get('tokenizer.chat_template')?.value;
  const chat = typeof template === 'string' ? { chat_template: template } : {};
  const whole = { version: '1.0', ...json, post_processor: postProcessor(around) };
  return new Map([
    ['tokenizer.json', JSON.stringify(whole)],
    ['tokenizer_config.json', JSON.stringify({ ...config, ...chat })],
    ...(specials.ends.length > 1
      ? [['generation_config.json', JSON.stringify({ eos_token_id: specials.ends })] as const]
      : []),
  ]);
}

interface ReadKind {
  readonly json: Omit<TokenizerJson, 'post_processor'> & { readonly decoder: PipelineStep };
  /** Whether a token begins each text where the file does not say it. */
  readonly addsBos: boolean;
}

type ReadTokenizer = (keys: TokenizerKeys, vocabulary: Vocabulary) => ReadKind;

const KINDS: ReadonlyMap<string, ReadTokenizer> = new Map([
  ['gpt2', byteLevel],
  ['llama', sentencePiece],
]);

function byteLevel(keys: TokenizerKeys, vocabulary: Vocabulary): ReadKind {
  const { name, steps, ignoresMerges } = preTokenizerSteps(keys.get('pre', 'string') ?? 'default');
  const merges = keys.get('merges', 'string[]');
  if (merges === undefined) {
    throw new GgufTokenizerError('tokenizer.ggml.merges: expected them beside gpt2, got none.');
  }
  const [step, ...more] = steps;
  return {
    json: {
      added_tokens: addedTokens(vocabulary),
      normalizer: name === 'qwen2' ? { type: 'NFC' } : null,
      pre_tokenizer: more.length === 0 ? step! : { type: 'Sequence', pretokenizers: steps },
      decoder: { type: 'ByteLevel' },
      model: {
        type: 'BPE',
        unk_token: null,
        byte_fallback: false,
        ignore_merges: ignoresMerges,
        vocab: vocabOf(vocabulary, [TOKEN_TYPE.normal, TOKEN_TYPE.unknown, TOKEN_TYPE.byte]),
        merges,
      },
    },
    addsBos: name === 'llama-bpe',
  };
}

function sentencePiece(keys: TokenizerKeys, vocabulary: Vocabulary): ReadKind {
  const { tokens, types } = vocabulary;
  const scores = keys.list('scores', 'f32[]', tokens.length);
  if (scores === undefined) {
    throw new GgufTokenizerError('tokenizer.ggml.scores: expected them beside llama, got none.');
  }
  const unknown = keys.get('unknown_token_id', 'u32') ?? types.indexOf(TOKEN_TYPE.unknown);
  const addsSpace = keys.get('add_space_prefix', 'bool') ?? true;
  const space = { type: 'Replace', pattern: { String: ' ' }, content: SPACE };
  const steps = [...(addsSpace ? [{ type: 'Prepend', prepend: SPACE }] : []), space];
  const decoders = [
    { type: 'Replace', pattern: { String: SPACE }, content: ' ' },
    { type: 'ByteFallback' },
    { type: 'Fuse' },
    ...(addsSpace ? [{ type: 'Strip', content: ' ', start: 1, stop: 0 }] : []),
  ];
  const inTexts = [TOKEN_TYPE.normal, TOKEN_TYPE.unknown, TOKEN_TYPE.control, TOKEN_TYPE.byte];
  return {
    json: {
      added_tokens: addedTokens(vocabulary),
      normalizer: { type: 'Sequence', normalizers: steps },
      pre_tokenizer: null,
      decoder: { type: 'Sequence', decoders },
      model: {
        type: 'BPE',
        unk_token: tokens[unknown] ?? null,
        byte_fallback: true,
        ignore_merges: false,
        vocab: vocabOf(vocabulary, inTexts),
        merges: scoredMerges(vocabulary, scores),
      },
    },
    addsBos: true,
  };
}

function readVocabulary(keys: TokenizerKeys): Vocabulary {
  const tokens = keys.get('tokens', 'string[]');
  if (tokens === undefined) {
    throw new GgufTokenizerError('tokenizer.ggml.tokens: expected the vocabulary, got none.');
  }
  const types = keys.list('token_type', 'i32[]', tokens.length);
  return { tokens, types: types ?? tokens.map(() => TOKEN_TYPE.normal) };
}

/** Tokens that are found before anything else is. */
function addedTokens({ tokens, types }: Vocabulary): AddedToken[] {
  return tokens.flatMap((content, id) => {
    const special = types[id] === TOKEN_TYPE.control || types[id] === TOKEN_TYPE.unknown;
    const plain = { single_word: false, lstrip: false, rstrip: false, normalized: false };
    return special || types[id] === TOKEN_TYPE.userDefined
      ? [{ id, content, ...plain, special }]
      : [];
  });
}

/** The numbers of tokens by text. Tokens that only fill the model's table are in none. */
function vocabOf({ tokens, types }: Vocabulary, kinds: readonly number[]): Record<string, number> {
  const vocab = new Map<string, number>();
  for (const [id, text] of tokens.entries()) {
    if (!kinds.includes(types[id]!)) {
      continue;
    }
    const other = vocab.get(text);
    if (other !== undefined) {
      throw new GgufTokenizerError(
        `tokenizer.ggml.tokens: expected ${JSON.stringify(text)} once, got it as ${other} and ${id}.`,
      );
    }
    vocab.set(text, id);
  }
  return Object.fromEntries(vocab);
}

/** A token with its number. */
interface Placed {
  readonly id: number;
  readonly text: string;
}

interface Around {
  readonly before: Placed | undefined;
  readonly after: Placed | undefined;
}

interface Specials {
  readonly config: TokenizerConfig & { readonly clean_up_tokenization_spaces: false };
  /** The numbers of all tokens that end a model's text. */
  readonly ends: readonly number[];
  readonly around: Around;
}

/** What ends an answer of Gemma. No key names it, and llama.cpp knows it by its text, too. */
const GEMMA_TURN = '<end_of_turn>';

function readSpecials(
  keys: TokenizerKeys,
  options: { readonly vocabulary: Vocabulary; readonly addsBos: boolean },
): Specials {
  const { tokens } = options.vocabulary;
  const placed = (which: string): Placed | undefined => {
    const id = keys.get(`${which}_token_id`, 'u32');
    const text = id === undefined ? undefined : tokens[id];
    if (id !== undefined && text === undefined) {
      throw new GgufTokenizerError(
        `tokenizer.ggml.${which}_token_id: expected one of ${tokens.length} tokens, got ${id}.`,
      );
    }
    return text === undefined ? undefined : { id: id!, text };
  };
  const [bos, eos, pad] = [placed('bos'), placed('eos'), placed('padding')];
  const addsBos = keys.get('add_bos_token', 'bool') ?? options.addsBos;
  const addsEos = keys.get('add_eos_token', 'bool') ?? false;
  const turn = tokens.indexOf(GEMMA_TURN);
  const ends = [eos, placed('eot'), placed('eom')].flatMap((end) => end?.id ?? []);
  return {
    config: {
      ...(bos && { bos_token: bos.text }),
      ...(eos && { eos_token: eos.text }),
      ...(pad && { pad_token: pad.text }),
      add_bos_token: addsBos && bos !== undefined,
      add_eos_token: addsEos && eos !== undefined,
      clean_up_tokenization_spaces: false,
    },
    ends: [...new Set(turn < 0 ? ends : [...ends, turn])],
    around: { before: addsBos ? bos : undefined, after: addsEos ? eos : undefined },
  };
}

/** The step that puts tokens before and behind a text; null for none. */
function postProcessor({ before, after }: Around): PipelineStep | null {
  const text = (id: string, type: number) => ({ Sequence: { id, type_id: type } });
  const beside = (token: Placed | undefined, type: number) =>
    token === undefined ? [] : [{ SpecialToken: { id: token.text, type_id: type } }];
  const one = (id: string, type: number) => [
    ...beside(before, type),
    text(id, type),
    ...beside(after, type),
  ];
  const tokens = [before, after].flatMap((token) => token ?? []);
  const entries = tokens.map(({ id, text }) => [text, { id: text, ids: [id], tokens: [text] }]);
  return tokens.length === 0
    ? null
    : {
        type: 'TemplateProcessing',
        single: one('A', 0),
        pair: [...one('A', 0), ...one('B', 1)],
        special_tokens: Object.fromEntries(entries),
      };
}
