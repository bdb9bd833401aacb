import type { TokenWriter } from './token-writer.js';
import type { Tokenizer } from './tokenizer.js';

/** Called during the work with the bytes that are done, and their total. */
export type OnTokenized = (done: number, total: number) => void;

/** What makes tokens of data and writes them. */
export interface WritingTools {
  readonly tokenizer: Tokenizer;
  readonly writer: TokenWriter;
  readonly onTokenized: OnTokenized;
}
