// How texts are cut before merges. llama.cpp has its own code for each way in which models do it,
// and the file names one of them. With the wrong name a tokenizer gives other tokens, and nothing
// reports it.

import { GgufTokenizerError } from '../errors.js';
import type { PipelineStep, TokenizerJson } from '../tokenizer-files.js';
import { stepsOf } from './steps.js';

/** llama.cpp's names (`tokenizer.ggml.pre`) for the ways to cut a text that are known here. */
export type PreTokenizer = 'gpt-2' | 'smollm' | 'llama-bpe' | 'qwen2';

/**
 * Matches words with a sign before them, runs of `digits`, signs with line ends, line ends, and
 * white space.
 */
const wordPattern = (digits: string) =>
  [
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)",
    '[^\\r\\n\\p{L}\\p{N}]?\\p{L}+',
    digits,
    ' ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*',
    '\\s*[\\r\\n]+',
    '\\s+(?!\\S)',
    '\\s+',
  ].join('|');
const splitStep = (pattern: string): PipelineStep => {
  return { type: 'Split', pattern: { Regex: pattern }, behavior: 'Isolated', invert: false };
};
const byteLevel = (cutsWords: boolean): PipelineStep => {
  return { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: cutsWords };
};
const ONE_DIGIT: PipelineStep = { type: 'Digits', individual_digits: true };

const KNOWN: Readonly<Record<PreTokenizer, readonly PipelineStep[]>> = {
  'gpt-2': [byteLevel(true)],
  smollm: [ONE_DIGIT, byteLevel(true)],
  'llama-bpe': [splitStep(wordPattern('\\p{N}{1,3}')), byteLevel(false)],
  qwen2: [splitStep(wordPattern('\\p{N}')), byteLevel(false)],
};
const NAMES = Object.keys(KNOWN) as readonly PreTokenizer[];

/** Other names that llama.cpp has for these ways. */
const ALIASES: ReadonlyMap<string, PreTokenizer> = new Map([
  ['llama3', 'llama-bpe'],
  ['llama-v3', 'llama-bpe'],
  ['deepseek-r1-qwen', 'qwen2'],
]);

/** The steps of a way, and whether words are looked up before merges. */
export interface PreTokenizerSteps {
  readonly name: PreTokenizer;
  readonly steps: readonly PipelineStep[];
  readonly ignoresMerges: boolean;
}

/** @throws {GgufTokenizerError} for a name of llama.cpp that is not known here */
export function preTokenizerSteps(given: string): PreTokenizerSteps {
  const name = ALIASES.get(given) ?? NAMES.find((known) => known === given);
  if (name === undefined) {
    throw new GgufTokenizerError(
      `tokenizer.ggml.pre: expected ${[...NAMES, ...ALIASES.keys()].join(', ')}, got ${JSON.stringify(given)}. How it cuts texts is not known here.`,
    );
  }
  return { name, steps: KNOWN[name], ignoresMerges: ignoresMergesIn(name) };
}

/** Llama 3 alone looks whole words up before it merges. */
function ignoresMergesIn(name: PreTokenizer): boolean {
  return name === 'llama-bpe';
}

/** @throws {GgufTokenizerError} for any other way, with its steps */
export function preTokenizerOf(json: TokenizerJson): PreTokenizer {
  const steps = stepsOf(json.pre_tokenizer);
  const found = steps.map(signatureOf).join();
  const name = NAMES.find((name) => KNOWN[name].map(signatureOf).join() === found);
  if (name === undefined) {
    throw new GgufTokenizerError(
      `tokenizer.json: expected the pre_tokenizer of ${NAMES.join(', ')}, got ${steps.length === 0 ? 'none' : JSON.stringify(steps)}. llama.cpp would cut texts in another way than it.`,
    );
  }
  const ignoresMerges = json.model.ignore_merges === true;
  if (ignoresMerges !== ignoresMergesIn(name)) {
    throw new GgufTokenizerError(
      `tokenizer.json: expected ignore_merges to be ${!ignoresMerges} beside the pre_tokenizer of ${name}, as llama.cpp has it, got ${ignoresMerges}.`,
    );
  }
  return name;
}

/**
 * What a step does, without the fields that change nothing, so that it is equal for steps that cut
 * alike.
 */
function signatureOf(step: PipelineStep): string {
  const { type, ...fields } = step;
  if (type === 'ByteLevel' && fields.add_prefix_space !== true) {
    return JSON.stringify([type, fields.use_regex !== false]);
  }
  if (type === 'Split') {
    const pattern = (fields.pattern as { readonly Regex?: string } | undefined)?.Regex;
    return JSON.stringify([type, pattern, fields.behavior, fields.invert === true]);
  }
  if (type === 'Digits') {
    return JSON.stringify([type, fields.individual_digits === true]);
  }
  return JSON.stringify(step);
}
