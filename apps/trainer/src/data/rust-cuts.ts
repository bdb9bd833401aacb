// Makes the library in JavaScript cut texts where the one in Rust does, whose tokens models have
// learnt. Two of its steps are patterns of JavaScript, where a digit is one of ten, and white space
// has U+FEFF and lacks U+0085. It reads a Split's pattern as Rust does, so here those steps become
// Splits.

import type { PipelineStep } from '@shardweave/gguf/tokenizer-files';

/** GPT-2's words, each with the space before it. */
const WORDS = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/** The same pre_tokenizer in steps that cut as they do in Rust. */
export function rustCuts(step: unknown): unknown {
  return typeof step === 'object' && step !== null && 'type' in step
    ? cuts(step as PipelineStep)
    : step;
}

function cuts(step: PipelineStep): PipelineStep {
  if (step.type === 'Sequence' && Array.isArray(step.pretokenizers)) {
    return { ...step, pretokenizers: step.pretokenizers.map(rustCuts) };
  }
  if (step.type === 'Digits') {
    return split(step.individual_digits === true ? '\\p{N}' : '\\p{N}+');
  }
  // A space that is put before the text would be put before each word behind a Split.
  if (step.type === 'ByteLevel' && step.use_regex !== false && step.add_prefix_space === false) {
    return { type: 'Sequence', pretokenizers: [split(WORDS), { ...step, use_regex: false }] };
  }
  return step;
}

function split(pattern: string): PipelineStep {
  return { type: 'Split', pattern: { Regex: pattern }, behavior: 'Isolated', invert: false };
}
