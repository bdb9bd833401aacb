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
const splitStep = (pattern: string) => JSON.stringify(['Split', pattern, 'Isolated', false]);
const BYTE_LEVEL = JSON.stringify(['ByteLevel', false]);
const BYTE_LEVEL_WORDS = JSON.stringify(['ByteLevel', true]);
const ONE_DIGIT = JSON.stringify(['Digits', true]);

const KNOWN: readonly (readonly [PreTokenizer, readonly string[]])[] = [
  ['gpt-2', [BYTE_LEVEL_WORDS]],
  ['smollm', [ONE_DIGIT, BYTE_LEVEL_WORDS]],
  ['llama-bpe', [splitStep(wordPattern('\\p{N}{1,3}')), BYTE_LEVEL]],
  ['qwen2', [splitStep(wordPattern('\\p{N}')), BYTE_LEVEL]],
];

/** @throws {GgufTokenizerError} for any other way, with its steps */
export function preTokenizerOf(json: TokenizerJson): PreTokenizer {
  const steps = stepsOf(json.pre_tokenizer);
  const found = steps.map(signatureOf).join();
  const known = KNOWN.find(([, signatures]) => signatures.join() === found);
  if (known === undefined) {
    throw new GgufTokenizerError(
      `tokenizer.json: expected the pre_tokenizer of ${KNOWN.map(([name]) => name).join(', ')}, got ${steps.length === 0 ? 'none' : JSON.stringify(steps)}. llama.cpp would cut texts in another way than it.`,
    );
  }
  const [name] = known;
  const ignoresMerges = json.model.ignore_merges === true;
  if (ignoresMerges !== (name === 'llama-bpe')) {
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
