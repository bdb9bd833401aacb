// These tests cover documents of JSONL data: which tokens count in their losses, and the errors for
// those that cannot be used.

import { createHash } from 'node:crypto';
import { existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { Template } from '@huggingface/jinja';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import type { Dataset } from '../src/data/dataset.js';
import { COUNTED, encodeDocuments } from '../src/data/document.js';
import { openData } from '../src/data/open-data.js';
import { prepareTokens } from '../src/data/prepare-tokens.js';
import { cacheDirectory, defaultCacheDirectory } from '../src/data/token-cache.js';
import { TokenFile } from '../src/data/token-file.js';
import { loadTokenizer } from '../src/data/tokenizer.js';
import { TrainerError, UsageError } from '../src/errors.js';
import { homeDirectory } from '../src/home-directory.js';
import { configOf, jsonlFile, openFlags } from './support/jsonl-data.js';
import { LETTERS, type LettersOptions, lettersDirectory } from './support/letters-tokenizer.js';

const { begin, end, other } = LETTERS;

/** Returns the tokens of a line's documents as text, with those that count in brackets. */
async function markedAll(line: object, options: LettersOptions = {}): Promise<string[]> {
  const tokenizer = await loadTokenizer('model', lettersDirectory(options));
  return encodeDocuments(JSON.stringify(line), tokenizer).map((tokens) => {
    const texts = [...tokens].map((token) => {
      const text = tokenizer.decode([(token & ~COUNTED) >>> 0]);
      return token >= COUNTED ? `[${text}]` : text;
    });
    return texts.join('').replaceAll('][', '');
  });
}

/** The same of a line with one document. */
async function marked(line: object, options: LettersOptions = {}): Promise<string> {
  const all = await markedAll(line, options);
  expect(all).toHaveLength(1);
  return all[0]!;
}

describe('a document', () => {
  it.each([
    ['all of a text', { text: 'ab' }, '[ab<end>]'],
    ['a completion alone', { prompt: 'ab', completion: 'cd' }, 'ab[cd<end>]'],
    ['fields that it does not know aside', { text: 'ab', id: 7 }, '[ab<end>]'],
    ['an end token that is there, and no second one', { text: 'ab<end>' }, '[ab<end>]'],
    [
      'answers with the token that ends them, and not the line break behind it',
      {
        messages: [
          { role: 'system', content: 's' },
          { role: 'user', content: 'q' },
          { role: 'assistant', content: 'yes' },
          { role: 'user', content: 'r' },
          { role: 'assistant', content: 'no' },
        ],
      },
      's:s<end>\nu:q<end>\na:[yes<end>]\nu:r<end>\na:[no<end>]',
    ],
    [
      'nothing behind the last answer',
      {
        messages: [
          { role: 'user', content: 'q' },
          { role: 'assistant', content: 'yes' },
          { role: 'user', content: 'r' },
        ],
      },
      'u:q<end>\na:[yes<end>]\nu:r<end>',
    ],
  ])('counts %s', async (_, line, expected) => {
    expect(await marked(line)).toBe(expected);
  });

  it('begins with the begin token where the tokenizer adds one, and never with two', async () => {
    const adds = { addsBegin: true };
    expect(await marked({ text: 'ab' }, adds)).toBe('<begin>[ab<end>]');
    const told = (add_bos_token: boolean) => ({
      tokenizerConfig: { bos_token: '<begin>', eos_token: '<end>', add_bos_token },
    });
    expect(await marked({ text: 'ab' }, { ...adds, ...told(false) })).toBe('[ab<end>]');
    expect(await marked({ text: 'ab' }, told(true))).toBe('<begin>[ab<end>]');
    expect(await marked({ prompt: '<begin>a', completion: 'b' }, adds)).toBe('<begin>a[b<end>]');
    const template =
      '{{ bos_token }}{% for m in messages %}{{ m.role + m.content + eos_token }}{% endfor %}';
    const messages = [{ role: 'assistant', content: 'b' }];
    // A conversation consists of what the template writes and nothing else.
    expect(await marked({ messages }, { ...adds, template })).toBe('<begin>[assistantb<end>]');
    expect(await marked({ messages }, adds)).toBe('a:[b<end>]');
  });

  it("ends with GPT-2's, which has no template", async () => {
    const gpt2 = await loadTokenizer('gpt2');
    const pair = JSON.stringify({ prompt: 'Hello', completion: ' world' });
    expect(encodeDocuments(pair, gpt2).map((ids) => [...ids])).toEqual([
      [15496, 995 + COUNTED, 50256 + COUNTED],
    ]);
    const chat = JSON.stringify({ messages: [CHAT] });
    expect(() => encodeDocuments(chat, gpt2)).toThrow(/--tokenizer gpt2 has no chat template/);
  });

  it('ends in bytes with one that no text has', async () => {
    const bytes = await loadTokenizer('byte');
    const [text] = encodeDocuments('{"text": "\u00e9"}', bytes);
    expect([...text!].map((token) => (token & ~COUNTED) >>> 0)).toEqual([0xc3, 0xa9, 0xff]);
    expect(bytes.endTokens).toEqual([0xff]);
    const { file } = jsonlFile(['Call me', 'Ishmael'].map((line) => ({ text: line })));
    await using found = await openFlags(`--model nano --data ${file} --seq 8 --batch 2`);
    expect(found.train.size).toMatchObject({ tokens: 16, documents: 2 });
  });

  it('ends with the end token also where a template writes none', async () => {
    const template =
      '{% for m in messages %}{{ m.role[0] }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}a>{% endif %}';
    const [ask, say] = [
      { role: 'user', content: 'q' },
      { role: 'assistant', content: 'yes' },
    ];
    expect(await marked({ messages: [ask, say] }, { template })).toBe('u>q\na>[yes\n<end>]');
    expect(await marked({ messages: [ask, say, ask] }, { template })).toBe(
      'u>q\na>[yes\n]u>q\n<end>',
    );
  });

  it('has the tokens of the whole text, whatever its parts', async () => {
    const half = await marked({ prompt: 'a\ud83d', completion: '\udc4db' });
    expect(half).toMatch(/b<end>\]$/);
  });
});

const CHAT = { role: 'user', content: 'q' };
const SAYS = { role: 'assistant', content: 'yes' };
const QA = 'u:q<end>\na:[yes<end>]';

describe('a shape', () => {
  const quoted = [
    { from: 'system', value: 's' },
    { from: 'human', value: 'q' },
    { from: 'gpt', value: 'yes' },
  ];
  it.each([
    ['ShareGPT', { id: 'x', conversations: quoted }, `s:s<end>\n${QA}`],
    [
      'ShareGPT with a system field',
      { system: 's', conversations: quoted.slice(1) },
      `s:s<end>\n${QA}`,
    ],
    ['conversations with roles', { conversations: [CHAT, SAYS] }, QA],
    ['Alpaca', { instruction: 'q', input: '', output: 'yes' }, QA],
    [
      'Alpaca with an input',
      { instruction: 'p', input: 'q', output: 'yes' },
      'u:p\n\nq<end>\na:[yes<end>]',
    ],
    ['input and output', { input: 'q', output: 'yes' }, QA],
    ['question and answer', { question: 'q', answer: 'yes' }, QA],
    [
      "TRL's lists",
      { prompt: [CHAT, SAYS, CHAT], completion: [SAYS] },
      `u:q<end>\na:yes<end>\n${QA}`,
    ],
    [
      'UltraChat, whose prompt stands beside',
      { prompt: 'q', prompt_id: '1', messages: [CHAT, SAYS] },
      QA,
    ],
    [
      'parts of text',
      { messages: [{ role: 'user', content: [{ type: 'text', text: 'q' }] }, SAYS] },
      QA,
    ],
    [
      'fields that are null elsewhere',
      { text: null, messages: [CHAT, { ...SAYS, tool_calls: null, weight: null }] },
      QA,
    ],
    ['messages as JSON text', { messages: JSON.stringify([CHAT, SAYS]) }, QA],
  ])('is read as it is: %s', async (_, line, expected) => {
    expect(await marked(line)).toBe(expected);
  });

  it('the shape of a conversation excludes answers of weight 0', async () => {
    const messages = [CHAT, { ...SAYS, weight: 0 }, CHAT, { ...SAYS, weight: 1 }];
    expect(await marked({ messages })).toBe(`u:q<end>\na:yes<end>\n${QA}`);
  });
});

/** Templates that treat tools and calls as those of three families do. */
const LLAMA_LIKE =
  '{{ bos_token }}{% if tools is not none and tools is defined %}T{% for t in tools %}{{ t | tojson(indent=1) }};{% endfor %}<end>{% endif %}' +
  "{% for m in messages %}{% if 'tool_calls' in m %}{% if not m.tool_calls|length == 1 %}{{ raise_exception('one call') }}{% endif %}" +
  '{% set call = m.tool_calls[0].function %}<{{ m.role }}>{{ \'{"name": "\' + call.name + \'", "parameters": \' }}{{ call.arguments | tojson }}{{ \'}<end>\' }}' +
  "{% elif m.role == 'tool' %}<ipython>{{ m.content | tojson if m.content is mapping else m.content }}<end>" +
  '{% else %}<{{ m.role }}>{{ m.content | trim }}<end>{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}';
const QWEN_LIKE =
  "{%- if tools %}{% for t in tools %}[{{ t | tojson }}]{% endfor %}<end>{% endif %}{%- for m in messages %}{%- if m.role == 'assistant' %}" +
  "{%- set said = m.content %}{%- if '/t' in said %}{%- set said = said.split('/t')[-1] if not loop.last else said %}{%- endif %}a:{{ said }}" +
  '{%- for c in m.tool_calls or [] %}!{{ c.function.name }}{% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}{{ c.function.arguments | tojson }}{% endif %}{%- endfor %}{{ "<end>\n" }}' +
  "{%- elif m.role in ['user', 'system', 'tool'] %}{{- m.role[0] + ':' + m.content + '<end>\\n' }}{%- endif %}{%- endfor %}" +
  "{%- if add_generation_prompt %}{{- 'a:' }}{% if enable_thinking is defined and enable_thinking is false %}no/t{% endif %}{%- endif %}";
const SMOL_LIKE =
  "{% for m in messages %}{% if loop.first and messages[0].role != 'system' %}{{ 's:default<end>\n' }}{% endif %}" +
  "{% generation %}{{ m.role[0] + ':' + m.content + '<end>' + '\n' }}{% endgeneration %}{% endfor %}{% if add_generation_prompt %}{{ 'a:' }}{% endif %}";

describe('a conversation with tools', () => {
  const tools = [{ type: 'function', function: { name: 'f', description: 'does' } }];
  const call = (given: unknown) => ({
    role: 'assistant',
    content: null,
    tool_calls: [{ type: 'function', function: { name: 'f', arguments: given } }],
  });
  const line = (given: unknown) => ({
    tools,
    messages: [CHAT, call(given), { role: 'tool', name: 'f', content: '7' }, SAYS],
  });

  it.each([
    [
      'Llama 3.1',
      LLAMA_LIKE,
      '<begin>T{\n "type": "function",\n "function": {\n  "name": "f",\n  "description": "does"\n }\n};<end>' +
        '<user>q<end><assistant>[{"name": "f", "parameters": {"a": 1}}<end>]<ipython>7<end><assistant>[yes<end>]',
    ],
    [
      'Qwen 3',
      QWEN_LIKE,
      '[{"type": "function", "function": {"name": "f", "description": "does"}}]<end>' +
        'u:q<end>\na:[!f{"a": 1}<end>]\nt:7<end>\na:[yes<end>]',
    ],
  ])('is what the template of %s writes', async (_, template, expected) => {
    for (const given of ['{"a":1}', { a: 1 }]) {
      expect(await marked(line(given), { template })).toBe(expected);
    }
    const direct = new Template(template).render({
      ...line({ a: 1 }),
      messages: line({ a: 1 }).messages.map((m) => ({ ...m, content: m.content ?? '' })),
      bos_token: '<begin>',
      eos_token: '<end>',
    });
    const tokenizer = await loadTokenizer('model', lettersDirectory({ template }));
    const [tokens] = encodeDocuments(JSON.stringify(line('{"a":1}')), tokenizer);
    expect(tokenizer.decode(tokens!.map((token) => token & ~COUNTED))).toBe(direct.trimEnd());
  });

  it('may stand under a template that marks answers and has a system message of its own', async () => {
    const messages = [CHAT, SAYS, CHAT, SAYS];
    const found = await marked({ messages }, { template: SMOL_LIKE });
    expect(found).toBe(`s:default<end>\n${QA}\n${QA}`);
    expect(found.replaceAll(/[[\]]/g, '')).toBe(
      new Template(SMOL_LIKE).render({ messages }).trimEnd(),
    );
  });

  it("passes documents and the template's own variables on", async () => {
    const template =
      "{% for d in documents or [] %}{{ d.title }}|{% endfor %}{% for m in messages %}{{ m.role[0] + style|default(':') + m.content + '<end>' }}{% endfor %}{% if add_generation_prompt %}a{{ style|default(':') }}{% endif %}";
    const chat = { documents: [{ title: 'x' }], messages: [CHAT, SAYS] };
    expect(await marked(chat, { template })).toBe('x|u:q<end>a:[yes<end>]');
    const styled = { ...chat, chat_template_kwargs: { style: '>' } };
    expect(await marked(styled, { template })).toBe('x|u>q<end>a>[yes<end>]');
  });

  it('is refused where the calls, the tools or a message leave no trace', async () => {
    const told = async (given: object, template: string) =>
      marked(given, { template }).catch((error: Error) => error.message);
    const messages = [CHAT, call('{}')];
    expect(await told({ messages }, SMOL_LIKE)).toMatch(
      /writes nothing of "tool_calls" of message 2 \(assistant\)\. Give/,
    );
    expect(await told({ tools, messages: [CHAT, SAYS] }, SMOL_LIKE)).toMatch(
      /writes nothing of "tools"/,
    );
    const odd = [CHAT, { role: 'function', content: '7' }, SAYS];
    expect(await told({ messages: odd }, QWEN_LIKE)).toMatch(
      /writes nothing of "content" of message 2 \(function\)/,
    );
    const thought = [CHAT, { ...SAYS, reasoning_content: 'Hm.' }];
    expect(await told({ messages: thought }, QWEN_LIKE)).toMatch(/nothing of "reasoning_content"/);
    expect(
      await told({ messages: [CHAT, SAYS], enable_thinking: false, id: 1 }, QWEN_THINKS),
    ).toMatch(
      /"enable_thinking" beside the messages is a variable .* "chat_template_kwargs": \{"enable_thinking"/,
    );
  });
});

/** A template that writes its variable into the conversation itself. */
const QWEN_THINKS = `{% if enable_thinking is defined %}t{% endif %}${QWEN_LIKE}`;

describe('a template that writes earlier answers in another way', () => {
  const turns = [CHAT, { role: 'assistant', content: 'hm/tyes' }, CHAT, SAYS];

  it('gets a document for each answer, with the text that the model sees then', async () => {
    expect(await markedAll({ messages: turns }, { template: QWEN_LIKE })).toEqual([
      'u:q<end>\na:[hm/tyes<end>]',
      `u:q<end>\na:yes<end>\n${QA}`,
    ]);
    const skipped = turns.map((turn, i) => (i === 1 ? { ...turn, weight: 0 } : turn));
    expect(await markedAll({ messages: skipped }, { template: QWEN_LIKE })).toEqual([
      `u:q<end>\na:yes<end>\n${QA}`,
    ]);
  });

  it('is evaluated on none of the conversations that are learnt', async () => {
    const lines = Array.from({ length: 6 }, (_, i) => ({
      messages: turns.map((turn) => ({ ...turn, content: `${turn.content}${i}` })),
    }));
    const { file, model } = jsonlFile(lines, { template: QWEN_LIKE });
    await using data = await openFlags(
      `--model ${model} --data ${file} --valid-fraction 0.5 --batch 1 --seq 32 --ranks 1`,
    );
    expect(data.train.size.documents).toBe(6);
    const numbers = async (set: Dataset) => {
      const found = new Set<string>();
      for (let step = 0; step < set.numSteps; step++) {
        const { tokens } = await set.microBatch(step, 0, 0);
        for (const token of tokens) {
          found.add(/[0-5]/.exec(String.fromCharCode(token))?.[0] ?? '');
        }
      }
      return [...found].filter((digit) => digit !== '');
    };
    const [learnt, apart] = [await numbers(data.train), await numbers(data.valid!)];
    expect([...learnt, ...apart].sort()).toEqual(['0', '1', '2', '3', '4', '5']);
  });
});

const refused: [string, (object | string)[], RegExp, (LettersOptions & { flags?: string })?][] = [
  [
    'a broken line',
    [{ text: 'a' }, '', '{"text": "b"'],
    /, line 3: expected a line of JSON, got \{"text": "b" \(.*\)\. Mend the line/,
  ],
  [
    'a line that is no object',
    ['[1, 2]'],
    /, line 1: expected an object \{"text"\}.*, got \[1, 2\]\. Write/,
  ],
  [
    'an unknown shape',
    [{ txt: 'a', n: 1 }],
    /, line 1: expected one of .*, got an object with "txt", "n"\. Rename/,
  ],
  ['two shapes at once', [{ text: 'a', messages: [] }], /got an object with "text", "messages"/],
  ['an empty object', [{}], /got an object with nothing in it/],
  ['a text that is none', [{ text: 7 }], /expected words in "text", got 7\. Fill it in/],
  ['an empty text', [{ text: '' }], /expected words in "text", got ""\./],
  ['a prompt alone', [{ prompt: 'a' }], /expected words in "completion", got no such field/],
  ['no messages', [{ messages: [] }], /got \[\] as messages\. Write each turn/],
  [
    'a message without content',
    [{ messages: [CHAT, { role: 'assistant' }] }],
    /got \{"role":"assistant"\} as message 2/,
  ],
  [
    'a role that the template refuses',
    [{ messages: [{ role: 'robot', content: 'x' }] }],
    /, line 1: the model's chat template refuses the conversation \(no robots\)\. Give it roles/,
  ],
  [
    'a template that changes what it wrote',
    [{ messages: [CHAT, { role: 'assistant', content: 'a' }, CHAT] }],
    /, line 1: the model's chat template writes message 2 \(assistant\) in another way/,
    { template: '{{ messages|length }}{% for m in messages %}{{ m.content }}{% endfor %}' },
  ],
  [
    'an answer before which the template writes a system message',
    [{ messages: [SAYS, CHAT, SAYS] }],
    /, line 1: message 1 \(assistant\) has nothing before it, .* default system message/,
    { template: SMOL_LIKE },
  ],
  [
    'a weight between',
    [{ messages: [CHAT, { ...SAYS, weight: 0.5 }] }],
    /expected a weight of 0, .* got 0\.5 in message 2 \(assistant\)/,
  ],
  [
    'a weight on what is asked',
    [{ messages: [{ ...CHAT, weight: 1 }, SAYS] }],
    /expected a weight of 0, .* got 1 in message 1 \(user\)/,
  ],
  [
    'a picture',
    [{ messages: [{ role: 'user', content: [{ type: 'image_url' }] }, SAYS] }],
    /expected content of text, .* got a part "image_url" in message 1/,
  ],
  [
    'an unknown speaker',
    [{ conversations: [{ from: 'robot', value: 'x' }] }],
    /expected "from" to be one of human, .* got "robot" in message 1/,
  ],
  [
    'arguments that are no JSON',
    [{ messages: [CHAT, { role: 'assistant', tool_calls: [{ function: { arguments: '{' } }] }] }],
    /expected the arguments of a call as an object, .* got "\{" in message 2/,
  ],
  [
    'a call whose arguments have another name',
    [
      {
        messages: [
          CHAT,
          { role: 'assistant', tool_calls: [{ function: { name: 'a', args: {} } }] },
        ],
      },
    ],
    /expected a call's name and arguments, got no arguments and "args" in message 2/,
  ],
  [
    'a list of tools that is none',
    [{ tools: '{}', messages: [CHAT, SAYS] }],
    /expected a list as "tools"/,
  ],
  [
    'what was said before',
    [{ instruction: 'q', output: 'a', history: [['a', 'b']] }],
    /got "history" beside them, which is not read/,
  ],
  [
    'two system messages',
    [{ system: 'a', messages: [{ role: 'system', content: 'b' }, CHAT, SAYS] }],
    /got "system" beside messages that begin with one/,
  ],
  [
    'messages without a template',
    [{ messages: [CHAT] }],
    /, line 1: expected \{"text"\} or .* no chat template, got "messages"\. Give a model/,
    { tokenizerConfig: { eos_token: '<end>' } },
  ],
  [
    'a document that is all prompt',
    [{ text: 'a' }, { messages: [CHAT] }],
    /, line 2: expected something to learn, got a document that is all prompt \(roles: user\)\. Add/,
  ],
  [
    'a role that is misspelt',
    [{ messages: [CHAT, { role: 'asistant', content: 'a' }] }],
    /a document that is all prompt \(roles: user, asistant\)\. Add/,
  ],
  [
    'an entry of a list',
    ['[{"text": "a"},', ' {"text": 7}]'],
    /data\.jsonl, entry 2: expected words in "text", got 7/,
  ],
  [
    'something between the entries of a list',
    ['[{"text": "a"}, 7, {"text": "b"}]'],
    /data\.jsonl, entry 2: expected an object of JSON, got "7, /,
  ],
  [
    'a list that is cut off',
    ['[{"text": "a"}, {"text": "b"'],
    /data\.jsonl, entry 2: expected an object of JSON, got the beginning of one/,
  ],
  [
    'the same in what is evaluated',
    [{ messages: [CHAT] }],
    /^--valid: .*, line 1: expected something to learn/,
    { flags: '--valid' },
  ],
  ['an empty set', ['', '  '], /has no documents in it\. Give a file with a line for each/],
  [
    'a conversation in bytes',
    [{ messages: [CHAT] }],
    /, line 1: expected \{"text"\} or .* --tokenizer byte has no chat template, got "messages"/,
    { isBare: true },
  ],
  [
    'a tokenizer without an end token',
    [{ text: 'a' }],
    /--tokenizer model has none/,
    { tokenizerConfig: {} },
  ],
  [
    'a token beyond the vocabulary',
    [{ text: 'a' }],
    /has token 257, but the model's vocabulary ends at 255\. Choose/,
    { config: { vocab_size: 256 } },
  ],
  [
    'a part of one document',
    [{ text: 'a' }],
    /^--valid-fraction 0\.5: .* has 1 documents, so none would be left/,
    { flags: '--valid-fraction 0.5' },
  ],
  [
    'rows beyond the positions',
    [{ text: 'a' }],
    /^--seq 33 is beyond the model's 32 positions/,
    { flags: '--seq 33' },
  ],
  [
    'a file that is not there',
    [],
    /^--valid: \/nowhere\.jsonl is not there\. Give/,
    { flags: '--valid /nowhere.jsonl' },
  ],
  [
    'two ways to evaluate',
    [{ text: 'a' }],
    /^--valid x and --valid-fraction 0\.5 both say/,
    { flags: '--valid x --valid-fraction 0.5' },
  ],
  [
    'an evaluation of nothing',
    [{ text: 'a' }],
    /^--eval-every is for --valid or --valid-fraction, which is not given/,
    { flags: '--eval-every 2' },
  ],
];

describe('data that can not be used', () => {
  it.each(refused)('is refused in a sentence: %s', async (_, lines, message, options = {}) => {
    const { flags = '', ...letters } = options;
    const { file, model } = jsonlFile(lines, letters);
    const good = jsonlFile([{ text: 'a' }]).file;
    const data =
      flags === '--valid'
        ? `--data ${good} --valid ${file}`
        : `--data ${lines.length === 0 ? good : file} ${flags}`;
    const error: unknown = await openFlags(`--model ${model} ${data}`.trim()).catch(
      (e: unknown) => e,
    );
    expect(error).toBeInstanceOf(UsageError);
    expect((error as Error).message).toMatch(message);
    expect((error as Error).message).toMatch(/[.]$/);
  });

  it('names the line that is no UTF-8', async () => {
    const { file, model } = jsonlFile([{ text: 'a' }]);
    writeFileSync(file, Buffer.concat([Buffer.from('{"text": "a"}\n'), Buffer.from([0xff, 10])]));
    await expect(openFlags(`--model ${model} --data ${file}`)).rejects.toThrow(
      /line 2: expected text in UTF-8/,
    );
  });

  it('counts prompts by order', async () => {
    const { file, model } = jsonlFile([{ messages: [CHAT] }]);
    await using data = await openFlags(
      `--model ${model} --data ${file} --train-on-prompt --batch 1 --ranks 1`,
    );
    expect(await data.train.numTargets(0)).toBe('u:q<end>'.length - '<end>'.length);
    await expect(openFlags(`--model ${model} --train-on-prompt`)).rejects.toThrow(
      /--train-on-prompt is for documents/,
    );
  });
});

describe('a file of documents', () => {
  const objects = Array.from({ length: 100 }, (_, i) => ({
    text: `${i} "}{[\\ \u00e9 `.repeat(40),
  }));
  const all = objects.map((each) => JSON.stringify(each));
  const pretty = objects.map((each) => JSON.stringify(each, null, 2));
  const prepared = async (text: string, name: string) => {
    const { file, model } = jsonlFile([text], { name });
    const config = await configOf(`--model ${model} --data ${file}`);
    return (await prepareTokens(config, { entry: '' })).train[0]!.directory;
  };

  it.each([
    ['lines of any name', all.join('\n'), 'data.txt'],
    ['lines behind a mark of the byte order', `\ufeff${all.join('\r\n')}\n`, 'data.ndjson'],
    ['lines named as JSON', all.join('\n'), 'data.json'],
    ['a list', `[${all.join(',')}]`, 'data.json'],
    ['a list that a program has laid out', JSON.stringify(objects, null, 2), 'data.txt'],
    ['objects that a program has laid out', `\n${pretty.join('\n')}`, 'data.jsonl'],
  ])('is told by its content: %s', async (_, text, name) => {
    const expected = await prepared(all.join('\n'), 'data.jsonl');
    const found = await prepared(text, name);
    const bytes = (directory: string) => readFileSync(join(directory, 'tokens.bin'));
    expect(bytes(found).equals(bytes(expected))).toBe(true);
    const tokens = await TokenFile.open(found);
    expect(tokens.index).toMatchObject({ kind: 'documents', documents: 100 });
    await tokens.close();
  });

  it.each(['{ never mind', '{"Call me"} Ishmael.', '[Verse 1]', '{"a": 1, ', '[{% if x %}'])(
    'is a text where it only looks like one: %s',
    async (text) => {
      const tokens = await TokenFile.open(await prepared(text, 'data.txt'));
      expect(tokens.index).toMatchObject({ kind: 'stream', tokens: text.length });
      await tokens.close();
    },
  );

  it('tells how many documents are longer than a row, and the rows of an epoch', async () => {
    // With their end tokens they have 4, 8, 9 and 20 targets, of which a row takes 8. Every rest is
    // alone, because a whole row follows it: 4 | 8 | 8 | 1 | 8 | 8 | 4.
    const lines = [4, 8, 9, 20].map((length) => ({ text: 'x'.repeat(length) }));
    const { file, model } = jsonlFile(lines);
    const line = `--model ${model} --data ${file} --order sequential --seq 8 --batch 2 --ranks 1`;
    await using data = await openFlags(line);
    expect(data.train.size).toEqual({ tokens: 45, documents: 4, cut: 2, pieces: 5, rows: 7 });
    expect((await configOf(`${line} --epochs 2.5`)).steps).toBe(9);
    expect((await configOf(`${line} --epochs 0.01`)).steps).toBe(1);
    expect((await configOf(line)).steps).toBe(480);
    await expect(configOf(`${line} --epochs 2 --steps 3`)).rejects.toThrow(
      /^--steps 3 and --epochs 2 both say how long the run is\. Give one of them\.$/,
    );
    const half = await configOf(`${line} --epochs 2 --valid-fraction 0.5 --schedule wsd`);
    await using part = await openData(half, await prepareTokens(half, { entry: '' }));
    const { rows } = part.train.size;
    expect(half).toMatchObject({ steps: rows, decaySteps: Math.round(rows / 5) });
  });
});

describe('the cache of tokens', () => {
  const prepare = async (flags: string, told: string[] = []) => {
    const files = await prepareTokens(await configOf(flags), {
      entry: '',
      onTokenized: (name, done) => done === 0 && told.push(name),
    });
    return { train: files.train[0]!.directory };
  };

  it('makes tokens once for a content, a tokenizer and a format', async () => {
    const cache = newFolder();
    const { file, model } = jsonlFile([{ text: 'some words' }]);
    const flags = (over = `--model ${model} --data ${file}`) => `${over} --cache ${cache}`;
    const told: string[] = [];
    const first = await prepare(flags(), told);
    expect(told).toEqual([file]);
    const copy = jsonlFile([{ text: 'some words' }], { name: 'copy.jsonl' });
    expect(await prepare(flags(`--model ${copy.model} --data ${copy.file}`), told)).toEqual(first);
    expect(told).toEqual([file]);
    const plain = join(model, 'data.txt');
    writeFileSync(plain, `Read ${readFileSync(file, 'utf8')}`);
    const template = lettersDirectory({ template: 'another' });
    for (const changed of [
      `--model ${model} --data ${plain}`,
      `--model ${template} --data ${file}`,
    ]) {
      expect((await prepare(flags(changed), told)).train).not.toBe(first.train);
    }
    expect(told).toHaveLength(3);
    expect(readdirSync(join(cache, 'tokens'))).toHaveLength(3);
    // Fields that do not concern the tokenizer, such as a width, do not change the tokens.
    const wide = lettersDirectory({ config: { n_embd: 32 } });
    expect((await prepare(flags(`--model ${wide} --data ${file}`), told)).train).toBe(first.train);
  });

  it('holds what two make of it at once, whole', async () => {
    const cache = newFolder();
    const { file, model } = jsonlFile(
      Array.from({ length: 500 }, (_, i) => ({ text: `line ${i}` })),
    );
    const flags = `--model ${model} --data ${file} --cache ${cache}`;
    const all = await Promise.all(Array.from({ length: 4 }, () => prepare(flags)));
    expect(new Set(all.map(({ train }) => train)).size).toBe(1);
    expect(readdirSync(join(cache, 'tokens'))).toHaveLength(1);
    const tokens = await TokenFile.open(all[0]!.train);
    expect(tokens.index).toMatchObject({ kind: 'documents', documents: 500, largest: end.id });
    await tokens.close();
  });

  it('keeps nothing of data that is refused', async () => {
    const cache = newFolder();
    const { file, model } = jsonlFile([{ text: 'a' }, 'no']);
    await expect(prepare(`--model ${model} --data ${file} --cache ${cache}`)).rejects.toThrow(
      UsageError,
    );
    expect(readdirSync(join(cache, 'tokens'))).toEqual([]);
  });

  it('says what to do where its files were changed, or can not be made', async () => {
    const { file, model } = jsonlFile([{ text: 'abc' }]);
    const { train } = await prepare(`--model ${model} --data ${file}`);
    writeFileSync(join(train, 'tokens.bin'), '');
    await expect(TokenFile.open(train)).rejects.toThrow(TrainerError);
    await expect(TokenFile.open(train)).rejects.toThrow(
      /cut off or changed\. Remove that directory/,
    );
    rmSync(train, { recursive: true });
    await expect(prepare(`--model ${model} --data ${file} --cache ${file}`)).rejects.toThrow(
      /^--cache: .* can't be written \(.*\)\. Give a directory/,
    );
    expect(existsSync(train)).toBe(false);
  });

  it('is read by ranges, over the borders of what is read at once', async () => {
    const lines = Array.from({ length: 300 }, (_, i) => ({ text: `${i} `.repeat(200) }));
    const { file, model } = jsonlFile(lines);
    const { train } = await prepare(`--model ${model} --data ${file}`);
    const tokens = await TokenFile.open(train);
    const tokenizer = await loadTokenizer('model', model);
    expect(tokens.index.tokens).toBeGreaterThan(2 * 65_536);
    for (const i of [0, 299, 120, 150]) {
      const { start, length } = tokens.document(i);
      const text = tokenizer.decode((await tokens.read(start, length)).map((t) => t & ~COUNTED));
      expect(text).toBe(`${lines[i]!.text}<end>`);
    }
    const hash = async (size: number) => {
      const sum = createHash('sha256');
      for (let at = 0; at < tokens.index.tokens; at += size) {
        sum.update(await tokens.read(at, Math.min(size, tokens.index.tokens - at)));
      }
      return sum.digest('hex');
    };
    expect(await hash(1000)).toBe(await hash(1e9));
    await tokens.close();
  });

  it('is where the system keeps what can be made again, unless it is told', () => {
    const home = '/h';
    const place = (platform: NodeJS.Platform, env = {}) =>
      defaultCacheDirectory(env, { platform, home });
    expect(place('linux')).toBe('/h/.cache/shardweave');
    expect(place('linux', { XDG_CACHE_HOME: '/x' })).toBe('/x/shardweave');
    expect(place('darwin')).toBe('/h/Library/Caches/shardweave');
    expect(place('win32', { LOCALAPPDATA: '/l' })).toBe('/l/shardweave/cache');
    expect(place('linux', { SHARDWEAVE_CACHE: '/mine', XDG_CACHE_HOME: '/x' })).toBe('/mine');
  });

  it('is asked for where the user has no home', () => {
    const nowhere = { platform: 'linux', home: '' } as const;
    const directoryOf = (given: string | undefined, env = {}) =>
      cacheDirectory(given, env, nowhere);
    expect(() => directoryOf(undefined)).toThrow(UsageError);
    expect(() => directoryOf(undefined)).toThrow(/^--cache: .* set SHARDWEAVE_CACHE to one\.$/);
    expect(directoryOf(undefined, { SHARDWEAVE_CACHE: '/mine' })).toBe(resolve('/mine'));
    expect(directoryOf('here')).toBe(resolve('here'));
  });

  it('is below the home that the system knows of, where it knows one', () => {
    const unknown = () => {
      throw new Error('uv_os_homedir returned ENOENT');
    };
    const userInfo = () => ({ homedir: '/h' });
    expect(homeDirectory({ homedir: unknown, userInfo })).toBeUndefined();
    expect(homeDirectory({ homedir: () => '', userInfo: unknown })).toBeUndefined();
    expect(homeDirectory({ homedir: () => '', userInfo })).toBe('/h');
    expect(homeDirectory({ homedir: () => '/mine', userInfo: unknown })).toBe('/mine');
  });
});

it('special tokens of the letters are what the tests above take them for', async () => {
  const tokenizer = await loadTokenizer('model', lettersDirectory());
  expect([...tokenizer.encode('<begin><end><other>')]).toEqual([begin.id, end.id, other.id]);
});
