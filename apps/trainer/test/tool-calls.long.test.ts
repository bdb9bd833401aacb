// A small model learns to call two tools with their arguments, calls them for requests that it has
// not seen, and does so in llama.cpp, too.

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { expect, it } from 'vitest';
import { llamaAnswer, openLlama } from '../../../packages/gguf/test/support/llama-cpp.ts';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { readCalls } from '../src/data/tool-calls.js';
import { LETTERS, lettersDirectory } from './support/letters-tokenizer.js';
import { runCli } from './support/run-cli.js';

/** It writes tools as a mark alone, which the data has as well. */
const TEMPLATE =
  "{% if tools %}{{ 't' + (tools | length | string) + '<end>\n' }}{% endif %}" +
  "{% for m in messages %}{{ m.role[0] + ':' + (m.content or '') }}" +
  "{% for c in m.tool_calls or [] %}{{ '<tool_call>' + (c.function | tojson) + '</tool_call>' }}" +
  "{% endfor %}{{ '<end>\n' }}{% endfor %}{% if add_generation_prompt %}a:{% endif %}";
const ROOMS = ['hall', 'attic', 'kitchen', 'study', 'garage', 'bath'];
const MINUTES = [2, 3, 4, 5, 6, 7, 8, 9];

const TOOLS = [
  { type: 'function', function: { name: 'light', parameters: { type: 'object' } } },
  { type: 'function', function: { name: 'wait', parameters: { type: 'object' } } },
];

type Call = readonly [name: string, given: object];

const BEFORE = ['', 'Hey, ', 'Well: ', 'Now then, ', 'Good morning! '];
const LIGHT = [
  (room: string, how: string) => `turn ${how} the lamp in the ${room}.`,
  (room: string, how: string) => `the ${room}: lamp ${how}!`,
  (room: string, how: string) => `lamp ${how}, ${room}, please.`,
  (room: string, how: string) => `in the ${room} turn it ${how}.`,
];
const WAIT = [
  (minutes: number) => `wait ${minutes} minutes.`,
  (minutes: number) => `come back in ${minutes} minutes.`,
  (minutes: number) => `give me ${minutes} minutes, please.`,
  (minutes: number) => `in ${minutes} minutes, then.`,
];

const REQUESTS: readonly (readonly [request: string, call: Call])[] = BEFORE.flatMap((before) => [
  ...ROOMS.flatMap((room) =>
    [true, false].flatMap((on) =>
      LIGHT.map((say) => [before + say(room, on ? 'on' : 'off'), ['light', { room, on }]] as const),
    ),
  ),
  ...MINUTES.flatMap((minutes) =>
    WAIT.map((say) => [before + say(minutes), ['wait', { minutes }]] as const),
  ),
]);

it('learns to call two tools', { timeout: 600_000 }, async () => {
  const folder = newFolder();
  const lines = REQUESTS.map(([content, [name, given]]) => ({
    tools: TOOLS,
    messages: [
      { role: 'user', content },
      {
        role: 'assistant',
        content: null,
        tool_calls: [{ type: 'function', function: { name, arguments: given } }],
      },
    ],
  }));
  const isHeldOut = (_: unknown, i: number) => i % 7 === 2;
  const write = (name: string, kept: readonly object[]) => {
    const path = join(folder, name);
    writeFileSync(path, kept.map((line) => `${JSON.stringify(line)}\n`).join(''));
    return path;
  };
  const train = write(
    'train.jsonl',
    lines.filter((line, i) => !isHeldOut(line, i)),
  );
  const held = write('held.jsonl', lines.filter(isHeldOut));
  const shape = {
    ...{
      model_type: 'llama',
      vocab_size: LETTERS.vocabSize,
      hidden_size: 64,
      intermediate_size: 128,
      num_hidden_layers: 2,
    },
    ...{ num_attention_heads: 4, num_key_value_heads: 4, max_position_embeddings: 128 },
    ...{ rms_norm_eps: 1e-5, hidden_act: 'silu', tie_word_embeddings: false },
  };
  const model = lettersDirectory({ template: TEMPLATE });
  writeFileSync(join(model, 'config.json'), JSON.stringify(shape));
  const trained = await runCli([
    ...`train --model ${model} --tokenizer model --data ${train} --out ${folder}/run`.split(' '),
    ...'--seq 128 --batch 16 --steps 900 --lr 4e-3 --warmup 40 --strategy single'.split(' '),
    ...'--device cpu --threads 2 --products wasm'.split(' '),
  ]);
  expect(trained.err).toBe('');
  expect(trained.code).toBe(0);
  const place = '--device cpu --threads 1 --max-tokens 90'.split(' ');
  const evaluated = await runCli([
    ...`eval --model ${folder}/run --data ${held} --task tools --json`.split(' '),
    ...place,
  ]);
  const { values } = JSON.parse(evaluated.out) as { values: Record<string, number> };
  expect(values.exact).toBeGreaterThan(0.9);

  // A conversation: what is typed after the call is its result.
  const tools = write('tools.json', []);
  writeFileSync(tools, JSON.stringify(TOOLS));
  const { out } = await runCli(
    [
      ...`generate --model ${folder}/run --chat --tools ${tools} --temperature 0 --quiet`.split(
        ' ',
      ),
      ...place,
    ],
    { input: 'Hey, wait 7 minutes.\n' },
  );
  expect(out).toBe('<tool_call>{"name": "wait", "arguments": {"minutes": 7}}</tool_call>\n');

  const file = join(folder, 'calls.gguf');
  const { code } = await runCli(`gguf --model ${folder}/run --type f16 --out ${file}`.split(' '));
  expect(code).toBe(0);
  const llama = await openLlama();
  try {
    const right = await Promise.all(
      REQUESTS.filter(isHeldOut)
        .slice(0, 20)
        .map(async ([content, [name, given]]) => {
          const prompt = `t2<end>\nu:${content}<end>\na:`;
          const { text } = await llamaAnswer(llama, { path: file, prompt, maxTokens: 90 });
          const [call] = readCalls(text);
          return call?.name === name && isDeepStrictEqual(call.arguments, given);
        }),
    );
    expect(right.filter((isRight) => isRight).length).toBeGreaterThan(18);
  } finally {
    await llama.dispose();
  }
});
