// Text to token numbers and back: UTF-8 bytes, or GPT-2's byte-pair encoding.

import type { TokenizerName } from '../run-config.js';

export interface Tokenizer {
  readonly name: TokenizerName;
  /** Tokens are below this. */
  readonly vocabSize: number;
  encode(text: string): Uint32Array;
  /** Invalid sequences, as half a character, become U+FFFD. */
  decode(tokens: Iterable<number>): string;
}

/** Loads a tokenizer; GPT-2's ranks (a few MB) are only read when asked for. */
export async function loadTokenizer(name: TokenizerName): Promise<Tokenizer> {
  return name === 'byte' ? byteTokenizer : await loadGpt2Tokenizer();
}

const byteTokenizer: Tokenizer = {
  name: 'byte',
  vocabSize: 256,
  encode: (text) => Uint32Array.from(new TextEncoder().encode(text)),
  decode: (tokens) => new TextDecoder().decode(Uint8Array.from(tokens)),
};

async function loadGpt2Tokenizer(): Promise<Tokenizer> {
  const bpe = await import('gpt-tokenizer/encoding/r50k_base');
  return {
    name: 'gpt2',
    vocabSize: 50257,
    // '<|endoftext|>' separates documents in texts made for GPT-2, so it is read as that token.
    encode: (text) => Uint32Array.from(bpe.encode(text, { allowedSpecial: 'all' })),
    decode: (tokens) => bpe.decode(tokens),
  };
}
