// The flags of the command `generate`, an interface that users script against. `eval` has some of
// them, too.

import { BLOCK_TYPES } from '@shardweave/dtypes/blocks';
import { flag, needed, type ValuesOf } from '../flags/flag.js';
import {
  bytes,
  device,
  file,
  filledText,
  nonNegative,
  oneOf,
  onOff,
  positive,
  share,
  shareOrNone,
  text,
  texts,
  threads,
  whole,
} from '../flags/flag-kinds.js';
import { PRODUCTS } from '../flags/train-flags.js';

/** What is opened. */
export const MODEL = {
  model: needed(file, [
    '--model <DIR|ORG/NAME>',
    'config.json, weights and tokenizer.json, or a run; a GGUF file; or a model of the Hub, such as org/name or org/name:Q4_K_M',
  ]),
  adapter: flag(file, undefined, [
    '--adapter <DIR|ORG/NAME>',
    "PEFT's adapter_config.json and adapter_model.safetensors",
  ]),
  tokenizer: flag(oneOf(['model', 'byte', 'gpt2']), undefined, [
    '--tokenizer <model|byte|gpt2>',
    'as train takes it',
  ]),
};

/** Where and how it is computed. */
export const PLACE = {
  precision: flag(oneOf(['fp32', 'fp16', 'bf16']), undefined, [
    '--precision <fp32|fp16|bf16>',
    'what weights are held and computed with in (default: the 16 bits of the file, or fp32, as over blocks, where generate then rounds the numbers of each token to 8 bits)',
  ]),
  baseType: flag(oneOf(BLOCK_TYPES), undefined, [
    '--base-type <TYPE>',
    `how the matrices rest: in ${BLOCK_TYPES.join(', ')} blocks (default: in those of a GGUF file, or in --precision)`,
  ]),
  strategy: flag(oneOf(['single', 'offload']), 'single', [
    '--strategy <single|offload>',
    'offload: the model rests off its device',
  ]),
  device: flag(device, 'auto', [
    '--device <auto|webgpu|cpu>',
    'as train takes it: auto is a GPU if there is one',
  ]),
  deviceBudget: flag(bytes, undefined, [
    '--device-budget <BYTES>',
    'most bytes on the device, with offload',
  ]),
  threads: flag(threads, undefined, ['--threads <N>', 'of the cpu device (default: all cores)']),
  products: flag(oneOf(PRODUCTS), 'auto', [
    '--products <auto|wasm|native>',
    'of the cpu device; auto: a library of this machine if there is one',
  ]),
};

/** The flags of a command that opens a model. */
export type OpenFlags = ValuesOf<typeof MODEL & typeof PLACE>;

export const GENERATE = {
  ...MODEL,
  prompt: flag(text, undefined, [
    '--prompt <TEXT>',
    'what to continue; without one a text begins at the begin token',
  ]),
  chat: flag(onOff, false, [
    '--chat',
    "a conversation by the model's template: each line of standard input is a turn",
  ]),
  system: flag(filledText, undefined, [
    '--system <TEXT>',
    'what the conversation of --chat begins with: who the model is, and what it is to do',
  ]),
  tools: flag(file, undefined, [
    '--tools <FILE>',
    'a JSON list of tools that the model of --chat may call, as data has them; what you type after a call is its result',
  ]),
  maxTokens: flag(whole(1), 256, ['--max-tokens <N>', 'of a text or an answer']),
  temperature: flag(nonNegative, 0.8, [
    '--temperature <X>',
    'below 1: likelier tokens more often; 0: the likeliest',
  ]),
  topK: flag(whole(1), undefined, [
    '--top-k <K>',
    'draw among so many of the likeliest (default: all)',
  ]),
  topP: flag(share, 1, [
    '--top-p <P>',
    'draw among the likeliest that reach this probability together',
  ]),
  minP: flag(shareOrNone, 0, [
    '--min-p <P>',
    'draw among those so many times as probable as the likeliest',
  ]),
  repetitionPenalty: flag(positive, 1, [
    '--repetition-penalty <X>',
    'above 1: tokens that stand in the text or the prompt already are drawn less often',
  ]),
  seed: flag(whole(0), 1, ['--seed <N>', 'of the draws']),
  stop: flag(texts, undefined, ['--stop <TEXT>', 'end before this text; may be given again']),
  ...PLACE,
  quiet: flag(onOff, false, ['--quiet', 'print the text after the prompt alone']),
};

export type GenerateFlags = ValuesOf<typeof GENERATE>;
