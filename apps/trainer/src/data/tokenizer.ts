// Turns text into token numbers and back: by the model directory's own tokenizer.json, GPT-2's
// byte-pair encoding, or UTF-8 bytes.

import type { TokenizerName } from '../run-config.js';
import type { ChatTemplate } from './chat-template.js';
import { type CutPlaces, usualPlaces } from './cut-text.js';

/** The file of a tokenizer in a model directory. */
export const TOKENIZER_FILE = 'tokenizer.json';

/**
 * The tokens that a tokenizer puts around a text, as begin text end, and around a pair of texts, as
 * begin text between text end. [CLS] text [SEP] text [SEP] has types 0 up to the first [SEP].
 */
export interface TextFrame {
  readonly begin: readonly number[];
  readonly between: readonly number[];
  readonly end: readonly number[];
}

export interface Tokenizer {
  readonly name: TokenizerName;
  /** Begins a document, or is put before an empty prompt. Undefined: there is none. */
  readonly beginToken: number | undefined;
  /** Whether documents begin with beginToken. */
  readonly addsBegin: boolean;
  /** Ends a document. Undefined: there is none. */
  readonly endToken: number | undefined;
  /** Any of these ends a model's text; `endToken` is one of them. */
  readonly endTokens: readonly number[];
  /** The texts of tokens that are found before anything else in a text, and cut it there. */
  readonly specialTexts: readonly string[];
  /** Writes conversations as text. Undefined: the tokenizer has no template. */
  readonly chat: ChatTemplate | undefined;
  /** The number of tokens that there are, which are all less. */
  readonly vocabularySize: number;
  /** What stands around a text that is embedded or classified. */
  readonly frame: TextFrame;
  /**
   * Where a text may be cut into pieces whose tokens, one piece after another, are those of the
   * whole. Undefined where nothing is known of such places.
   */
  readonly cuts: CutPlaces | undefined;
  /**
   * The tokens of a text, without a begin or end token. Half a surrogate pair is read as U+FFFD.
   */
  encode(text: string): Uint32Array;
  /** The text of tokens. Invalid sequences, such as half a character, become U+FFFD. */
  decode(tokens: Iterable<number>): string;
}

/** The tokens at which a text that a model makes is over. */
export function stopTokens({ endTokens, beginToken }: Tokenizer): number[] {
  return [...endTokens, ...(beginToken === undefined ? [] : [beginToken])];
}

/**
 * Loads a tokenizer; GPT-2's ranks (a few MB) are only read when they are asked for.
 * @param directory the directory in which `model` finds tokenizer.json
 */
export async function loadTokenizer(name: TokenizerName, directory?: string): Promise<Tokenizer> {
  if (name === 'model') {
    const { openHubTokenizer } = await import('./hub-tokenizer.js');
    return await openHubTokenizer(directory ?? '.');
  }
  return name === 'byte' ? byteTokenizer : await loadGpt2Tokenizer();
}

/** A key that is equal for tokenizers that make equal tokens of equal texts and conversations. */
export async function tokenizerKey(name: TokenizerName, directory?: string): Promise<string> {
  if (name !== 'model') {
    return name;
  }
  const { hubTokenizerHash } = await import('./hub-tokenizer.js');
  return await hubTokenizerHash(directory ?? '.');
}

/** What the tokenizers without a directory have in common: no chats. */
const PLAIN = {
  beginToken: undefined,
  addsBegin: false,
  chat: undefined,
} as const;

/** No text in UTF-8 has this byte. */
const BYTE_END = 0xff;

const endedBy = (token: number): TextFrame => ({ begin: [], between: [token], end: [token] });

const byteTokenizer: Tokenizer = {
  ...PLAIN,
  name: 'byte',
  endToken: BYTE_END,
  endTokens: [BYTE_END],
  specialTexts: [],
  vocabularySize: 256,
  frame: endedBy(BYTE_END),
  cuts: usualPlaces([]),
  encode: (text) => Uint32Array.from(new TextEncoder().encode(text)),
  decode: (tokens) => new TextDecoder().decode(Uint8Array.from(tokens)),
};

const GPT2_END = 50256;
/** Separates documents in texts made for GPT-2, so it is read as that token. */
const GPT2_END_TEXT = '<|endoftext|>';
const NONE = { disallowedSpecial: new Set<string>() };

async function loadGpt2Tokenizer(): Promise<Tokenizer> {
  const bpe = await import('gpt-tokenizer/encoding/r50k_base');
  return {
    ...PLAIN,
    name: 'gpt2',
    endToken: GPT2_END,
    endTokens: [GPT2_END],
    specialTexts: [GPT2_END_TEXT],
    vocabularySize: GPT2_END + 1,
    frame: endedBy(GPT2_END),
    cuts: usualPlaces([GPT2_END_TEXT]),
    // The library finds special tokens at the beginning of a text alone.
    encode: (text) =>
      Uint32Array.from(
        text
          .split(GPT2_END_TEXT)
          .flatMap((part, i) => [...(i > 0 ? [GPT2_END] : []), ...bpe.encode(part, NONE)]),
      ),
    decode: (tokens) => bpe.decode(tokens),
  };
}
