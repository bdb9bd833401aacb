// The small tokenizer of tooling/tokenizer as files made of a SentencePiece model have it, in the
// two ways of published models: Llama 2's and Gemma's.

import { readFileSync } from 'node:fs';

/** The character that stands for a space. */
const SPACE = '\u2581';
const REPLACE = { type: 'Replace', pattern: { String: ' ' }, content: SPACE };
const BEGIN = { SpecialToken: { id: '<bos>', type_id: 0 } };
const BYTES = Array.from(
  { length: 256 },
  (_, byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`,
);

/** How a family has such a tokenizer. */
interface Style {
  readonly special: readonly string[];
  /** Tokens that are found in a text before anything else is. */
  readonly userDefined: readonly string[];
  readonly pipeline: object;
}

const runs = (text: string, [from, to]: readonly [from: number, to: number]) =>
  Array.from({ length: to - from + 1 }, (_, i) => text.repeat(from + i));

const STYLES = {
  llama: {
    special: ['<unk>', '<s>', '</s>'],
    userDefined: [],
    pipeline: {
      normalizer: { type: 'Sequence', normalizers: [{ type: 'Prepend', prepend: SPACE }, REPLACE] },
      pre_tokenizer: null,
      post_processor: null,
      decoder: null,
    },
  },
  gemma: {
    special: ['<pad>', '<eos>', '<bos>', '<unk>', '<start_of_turn>', '<end_of_turn>'],
    userDefined: [...runs('\n', [1, 4]), ...runs(SPACE, [2, 6]), '\t', '<table>'],
    pipeline: {
      normalizer: REPLACE,
      // It finds no space, since the normalizer has replaced them all.
      pre_tokenizer: {
        type: 'Split',
        pattern: { String: ' ' },
        behavior: 'MergedWithPrevious',
        invert: false,
      },
      post_processor: {
        type: 'TemplateProcessing',
        single: [BEGIN, { Sequence: { id: 'A', type_id: 0 } }],
        pair: [
          ...[BEGIN, { Sequence: { id: 'A', type_id: 0 } }],
          ...[BEGIN, { Sequence: { id: 'B', type_id: 1 } }],
        ],
        special_tokens: { '<bos>': { id: '<bos>', ids: [2], tokens: ['<bos>'] } },
      },
      decoder: {
        type: 'Sequence',
        decoders: [
          { type: 'Replace', pattern: { String: SPACE }, content: ' ' },
          { type: 'ByteFallback' },
          { type: 'Fuse' },
        ],
      },
    },
  },
} as const satisfies Readonly<Record<string, Style>>;

/**
 * Returns a tokenizer.json of about 500 tokens: special ones, those that people defined, the bytes,
 * then tokens in the order of their merges, each with every pair that makes it, then characters.
 * The merges of Gemma's user-defined tokens, which all have one score, come first, and the longer
 * left part before others, as transformers sorts them.
 */
export function sentencePieceText(family: keyof typeof STYLES = 'llama'): string {
  const { special, userDefined, pipeline } = STYLES[family];
  const path = new URL('../tokenizer/tokenizer.json', import.meta.url);
  const { model } = JSON.parse(readFileSync(path, 'utf8')) as {
    readonly model: { readonly vocab: Readonly<Record<string, number>> };
  };
  const words = Object.keys(model.vocab)
    .slice(256)
    .map((word) => word.replaceAll('\u0120', SPACE))
    .filter((word) => /^[\u2581 -~]+$/.test(word))
    .filter((word) => !(userDefined as readonly string[]).includes(word));
  const letters = [...new Set([...words.join(''), ...'.,-!?0123'])];
  const pieces = new Set<string>([...userDefined, ...words, ...letters]);
  const pairsOf = (word: string) =>
    Array.from(word.slice(1), (_, i) => [word.slice(0, i + 1), word.slice(i + 1)] as const).filter(
      (pair) => pair.every((part) => pieces.has(part)),
    );
  const first = userDefined
    .flatMap(pairsOf)
    .sort(([a, b], [c, d]) => c.length - a.length || d.length - b.length);
  const merges = [...first, ...words.flatMap(pairsOf)].map((pair) => pair.join(' '));
  const all = [...special, ...userDefined, ...BYTES, ...words, ...letters];
  const added = [...special, ...userDefined].map((content, id) => {
    const plain = { single_word: false, lstrip: false, rstrip: false, normalized: false };
    return { id, content, ...plain, special: id < special.length };
  });
  return JSON.stringify({
    version: '1.0',
    added_tokens: added,
    ...pipeline,
    model: {
      type: 'BPE',
      unk_token: '<unk>',
      fuse_unk: true,
      byte_fallback: true,
      vocab: Object.fromEntries(all.map((token, id) => [token, id])),
      merges,
    },
  });
}

/** tokenizer_config.json beside Gemma's. */
export const GEMMA_CONFIG = {
  ...{ bos_token: '<bos>', eos_token: '<eos>', pad_token: '<pad>', unk_token: '<unk>' },
  add_bos_token: true,
  clean_up_tokenization_spaces: false,
};

/** The chat template of the models of Gemma 3 that are tuned for conversations. */
export const GEMMA_TEMPLATE = `{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<start_of_turn>model\\n' }}
{%- endif -%}
`;
