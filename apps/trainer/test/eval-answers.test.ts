// Answers are judged with a model that says what the test has it say, and by the command with a
// random one, whose own answers are right.

import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { makeModel, parseModelConfig, stateDict } from '@shardweave/nn';
import { Device } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { beforeAll, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { readQuestions } from '../src/data/read-questions.js';
import { loadTokenizer } from '../src/data/tokenizer.js';
import { compareAnswers } from '../src/eval/judge-answers.js';
import type { AnswerTask } from '../src/task/answer-tasks.js';
import { lettersDirectory } from './support/letters-tokenizer.js';
import { runCli } from './support/run-cli.js';
import { writeModel } from './support/write-model.js';

/** Writes tools, and calls as Qwen does. */
const TEMPLATE =
  "{% if tools %}{{ 's:' + (tools | tojson) + '<end>\n' }}{% endif %}{% for m in messages %}" +
  "{{ m.role[0] + ':' + (m.content or '') }}{% for c in m.tool_calls or [] %}" +
  "{{ '<tool_call>' + (c.function | tojson) + '</tool_call>' }}{% endfor %}{{ '<end>\n' }}" +
  '{% endfor %}{% if add_generation_prompt %}a:{% endif %}';
const directory = lettersDirectory({ template: TEMPLATE, config: { n_positions: 256 } });
const folder = newFolder();

function written(name: string, lines: readonly object[]): string {
  const path = join(folder, name);
  writeFileSync(path, lines.map((line) => `${JSON.stringify(line)}\n`).join(''));
  return path;
}

const TOOLS = [{ type: 'function', function: { name: 'light', parameters: {} } }];
const user = (content: string) => ({ role: 'user', content });
const call = (name: string, given: object) => ({
  role: 'assistant',
  content: null,
  tool_calls: [{ type: 'function', function: { name, arguments: given } }],
});
const CHATS = written('chats.jsonl', [
  {
    tools: TOOLS,
    messages: [
      user('on'),
      call('light', { on: true, room: 'hall' }),
      { role: 'tool', content: 'done' },
      { role: 'assistant', content: 'It is on.' },
    ],
  },
  { tools: TOOLS, messages: [user('off'), call('light', { on: false })] },
  { tools: TOOLS, messages: [user('wait'), call('wait', {})] },
]);

/** Judges a model that gives these answers, one after the other. */
async function judge(task: AnswerTask, data: string, answers: readonly string[]) {
  const tokenizer = await loadTokenizer('model', directory);
  const questions = await readQuestions(data, tokenizer, { flag: '--data' });
  const left = [...answers];
  const asked: string[] = [];
  const model = {
    tokenizer,
    async *continue(prompt: readonly number[]) {
      asked.push(tokenizer.decode(prompt));
      yield* tokenizer.encode(left.shift()!);
    },
  };
  const { signal } = new AbortController();
  const found = await compareAnswers(model, questions, { task, data, signal, onAnswer: () => {} });
  expect(left).toEqual([]);
  return { found, asked };
}

const said = (name: string, given: object) =>
  `<tool_call>${JSON.stringify({ name, arguments: given })}</tool_call>`;

describe('an evaluation of answers', () => {
  it('answers are judged by the calls in them, after what stands before each in the data', async () => {
    const { found, asked } = await judge('tools', CHATS, [
      said('light', { room: 'hall', on: true }),
      said('light', { on: true }),
      said('light', { on: true }),
      'I wait.',
    ]);
    const { misses, ...rest } = found;
    expect(rest).toEqual({
      task: 'tools',
      documents: 3,
      answers: 4,
      format: 'Qwen 3 and SmolLM3',
      values: { exact: 0, json: 0.25, name: 0.5 },
    });
    // Where nothing is to be called, a call is wrong. The words of an answer do not count.
    expect(misses.map(({ place, given }) => [place.slice(folder.length + 1), given])).toEqual([
      ['chats.jsonl, line 1', said('light', { on: true })],
      ['chats.jsonl, line 2', said('light', { on: true })],
      ['chats.jsonl, line 3', 'I wait.'],
    ]);
    expect(asked[0]).toBe(
      `s:${JSON.stringify(TOOLS).replaceAll(/([:,])/g, '$1 ')}<end>\nu:on<end>\na:`,
    );
    expect(asked[1]).toContain('"room": "hall"}}</tool_call><end>\nt:done<end>\na:');
    expect(misses[1]!.wanted).toBe(
      '<tool_call>{"name": "light", "arguments": {"on": false}}</tool_call>',
    );
  });

  it('compares exactly: calls by their characters, and words without white space around', async () => {
    const right = '<tool_call>{"name": "light", "arguments": {"on": false}}</tool_call>';
    const answers = ['?', '', `${right}\n`, said('wait', {})];
    const { values } = (await judge('tools', CHATS, answers)).found;
    expect(values).toEqual({ exact: 0.5, json: 0.75, name: 0.75 });
    const exact = (await judge('exact', CHATS, ['It is on.', ' It is on.\n', right, '?'])).found;
    expect(exact).toMatchObject({ task: 'exact', values: { exact: 0.5 }, format: undefined });
    expect(exact.misses.map(({ given }) => given)).toEqual(['It is on.', '?']);
  });

  it('answers that are not learnt from are not asked for', async () => {
    const data = written('weights.jsonl', [
      {
        messages: [
          user('a'),
          { role: 'assistant', content: 'b', weight: 0 },
          user('c'),
          { role: 'assistant', content: 'd' },
        ],
      },
      { prompt: 'q', completion: ' e' },
    ]);
    const { found, asked } = await judge('exact', data, ['d', 'e']);
    expect(found).toMatchObject({ answers: 2, documents: 2, values: { exact: 1 } });
    expect(asked).toEqual(['u:a<end>\na:b<end>\nu:c<end>\na:', 'q']);
  });

  it.each([
    [
      'tools',
      [{ messages: [user('a'), { role: 'assistant', content: 'b' }] }],
      /answers with "tool_calls".*"b"/,
    ],
    ['exact', [{ text: 'a' }], /other\.jsonl, line 1: expected {"messages"}/],
    ['exact', [{ messages: [user('a')] }], /no answers in it/],
  ] as const)('%s: other data is refused', async (task, lines, message) => {
    await expect(judge(task, written('other.jsonl', lines), [])).rejects.toThrow(message);
  });
});

describe('the command', () => {
  const config = parseModelConfig(readFileSync(join(directory, 'config.json'), 'utf8'));
  const evaluated = (data: string, flags = '') =>
    runCli([
      ...`eval --model ${directory} --task exact --data ${data} --max-tokens 8`.split(' '),
      ...`--device cpu --threads 1 ${flags}`.trim().split(' '),
    ]);

  beforeAll(async () => {
    const device = new Device(createReferenceBackend());
    const model = makeModel(device, config, { seed: 7 });
    await writeModel(directory, { config, state: await stateDict(model) });
    device.dispose();
  });

  it('has the model answer greedily', async () => {
    const lines = ['ab', 'cd', 'ef'].map((prompt) => ({ prompt, completion: 'never' }));
    const { code, out } = await evaluated(written('ask.jsonl', lines), '--json');
    expect(code).toBe(0);
    const { misses, values } = JSON.parse(out) as { misses: { given: string }[]; values: object };
    expect(values).toEqual({ exact: 0 });
    const own = lines.map((line, i) => ({ ...line, completion: misses[i]!.given || '?' }));
    const again = await evaluated(written('own.jsonl', [...own.slice(0, 2), lines[2]!]));
    expect(again.out).toMatch(/^task {7}exact, 3 answers of 3 documents\nexact {6}0\.6667\n/);
    expect(again.out).toMatch(/own\.jsonl, line 3\n {2}wanted {3}never\n {2}given {4}/);
    const generated = await runCli([
      ...`generate --model ${directory} --prompt ab --max-tokens 8 --temperature 0`.split(' '),
      ...'--quiet --device cpu --threads 1'.split(' '),
    ]);
    expect(generated.out.trim()).toBe(misses[0]!.given);
  });

  it('names the line of a question that has no room', async () => {
    const data = written('long.jsonl', [{ prompt: 'a'.repeat(300), completion: 'b' }]);
    const { code, err } = await evaluated(data);
    expect(code).toBe(2);
    expect(err).toMatch(/--data: .*long\.jsonl, line 1: the prompt has 300 tokens.*256 positions/);
  });

  it('refuses data that asks nothing, and flags that do nothing', async () => {
    const refused = async (flags: string) => {
      const { code, err } = await runCli(`eval --model ${directory} ${flags}`.split(' '));
      expect(code).toBe(2);
      return err.replaceAll(/\S*\//g, '');
    };
    const data = written('some.jsonl', [{ prompt: 'a', completion: 'b' }]);
    expect(await refused('--task tools')).toBe(
      'error: --data is not given, and the task needs examples. Give JSON lines, CSV, TSV or Parquet of them.\n',
    );
    const tools = `--task tools --data ${data}`;
    expect(await refused(`${tools} --seq 8`)).toBe(
      'error: --seq is for a loss on data, got --task tools. Leave it out, or give another --task.\n',
    );
    expect(await refused(`${tools} --batch 3`)).toMatch(/^error: --batch is for a loss on data/);
    expect(await refused(`--task exact --data ${data} --train-on-prompt`)).toMatch(
      /^error: --train-on-prompt is for a loss on data, got --task exact/,
    );
    expect(await refused(`--data ${data} --max-tokens 8`)).toBe(
      'error: --max-tokens is for --task tools or exact, which is not given. Leave it out, or give another --task.\n',
    );
    expect(await refused(`--task lm --data ${data} --max-tokens 8`)).toMatch(/got --task lm/);
  });
});
