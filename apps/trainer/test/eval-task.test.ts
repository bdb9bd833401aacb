// A run has its model answer questions of --valid: the shares of right answers are those of any
// strategy and number of ranks, and nothing else of the run changes.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { generate, makeModel, nextLogits, parseModelConfig } from '@shardweave/nn';
import { Device } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { CHARTS, type ChartSeries } from '../src/page/plot/charts.js';
import type { RankEvent } from '../src/rank/events.js';
import { jsonlFile } from './support/jsonl-data.js';
import { LETTERS, lettersDirectory } from './support/letters-tokenizer.js';
import { runCli } from './support/run-cli.js';
import { type RunRecord, runFlags } from './support/run-flags.js';

const TEMPLATE =
  "{% for m in messages %}{{ m.role[0] + ':' + (m.content or '') }}{% for c in m.tool_calls or [] %}" +
  "{{ '<tool_call>' + (c.function | tojson) + '</tool_call>' }}{% endfor %}{{ '<end>\n' }}" +
  '{% endfor %}{% if add_generation_prompt %}a:{% endif %}';
/** Half of all tokens end an answer, so that a random model's are short, and letters alone. */
const STOP = Array.from({ length: LETTERS.vocabSize - 128 }, (_, i) => 128 + i);
const model = lettersDirectory({
  template: TEMPLATE,
  config: { n_positions: 96, initializer_range: 0.5 },
  generationConfig: { eos_token_id: [LETTERS.end.id, ...STOP] },
});
const PROMPTS = [...'?!.:'].flatMap((end) =>
  [...'abcdefghijklmnopqrstuvwxyz'].map((letter) => letter + end),
);
const { file } = jsonlFile(
  PROMPTS.map((prompt) => ({ prompt, completion: 'no' })),
  { model },
);

/** What the model says before it is trained, one token after the other and without a cache. */
async function ownAnswers(count: number): Promise<{ prompt: string; completion: string }[]> {
  const device = new Device(createReferenceBackend());
  const shape = readFileSync(join(model, 'config.json'), 'utf8');
  const own = makeModel(device, parseModelConfig(shape), { seed: 1 }).eval();
  const found: { prompt: string; completion: string }[] = [];
  for (const prompt of PROMPTS) {
    if (found.length === count) {
      break;
    }
    let completion = '';
    for await (const token of generate(nextLogits(own), Buffer.from(prompt), {
      ...{ temperature: 0, maxTokens: 9, stop: STOP },
    })) {
      completion += String.fromCharCode(token);
    }
    if (completion.trim() !== '' && completion.length < 9) {
      found.push({ prompt, completion });
    }
  }
  device.dispose();
  return found;
}

// Their lengths differ, so that ranks are done at different times; two are not what it says.
const said = await ownAnswers(7);
const { file: valid } = jsonlFile(
  said.map((line, i) => (i === 1 || i === 4 ? { ...line, completion: 'never' } : line)),
  { model, name: 'valid.jsonl' },
);
const RUN = [
  ...['--device', 'cpu', '--threads', '1', '--products', 'wasm', '--model', model],
  ...['--data', file, '--valid', valid, '--seq', '32', '--batch', '6', '--dropout', '0.1'],
];
const EXACT = '--eval-task exact';

const run = (flags: string, more?: Parameters<typeof runFlags>[1]) =>
  runFlags([...RUN, ...flags.split(' ')], more);

describe('an evaluation with answers', () => {
  it.each(['--strategy ddp --ranks 2', '--strategy fsdp --ranks 3', '--strategy offload'])(
    'has the same shares for every way to shard: %s',
    async (strategy) => {
      const lengths = new Set(said.map(({ completion }) => completion.length));
      expect([said.length, lengths.size > 2]).toEqual([7, true]);
      const { steps } = await run(`--steps 1 --lr 0 ${EXACT} ${strategy}`);
      expect(steps[0]!.figures).toEqual({ exact: 5 / 7 });
    },
  );

  it('is in the record and the line, and says what eval says', async () => {
    const out = join(newFolder(), 'run');
    const flags = `${EXACT} --steps 1 --lr 0 --strategy single --eval-answers 6 --out ${out}`;
    const { code, out: printed } = await runCli(['train', ...RUN, ...flags.split(' ')]);
    expect(code).toBe(0);
    expect(printed).toMatch(/every 100 steps, with at most 6 answers \(exact\)\n/);
    expect(printed).toMatch(/^step 1\/1 .* \| exact 0\.6667 \|/m);
    const read = (name: string) => readFileSync(join(out, name), 'utf8');
    expect(JSON.parse(read('summary.json'))).toMatchObject({ figures: { exact: 4 / 6 } });
    const line = JSON.parse(read('metrics.jsonl'));
    expect(line.figures).toEqual({ exact: 4 / 6 });
    const series = CHARTS.find(({ id }) => id === 'figures')!.series as readonly ChartSeries[];
    expect(series.flatMap(({ value }) => value(line) ?? [])).toEqual([4 / 6]);
    const place = '--device cpu --threads 1 --products wasm';
    const { out: evaluated } = await runCli(
      `eval --model ${out} --data ${valid} --task exact --json ${place}`.split(' '),
    );
    expect(JSON.parse(evaluated).values).toEqual({ exact: 5 / 7 });
  });

  it('changes nothing else of the run, and is given up where the run is asked to end', async () => {
    const flags = '--strategy fsdp --ranks 2 --steps 3 --eval-every 1';
    const losses = ({ steps }: RunRecord) => steps.map(({ loss, validLoss }) => [loss, validLoss]);
    const plain = await run(flags);
    expect(losses(await run(`${flags} ${EXACT} --eval-answers 2`))).toEqual(losses(plain));
    const wrapUp = new AbortController();
    const seen: number[] = [];
    const onEvent = (event: RankEvent) => {
      if (event.type === 'evaluating' && event.total === 7) {
        seen.push(event.done);
        wrapUp.abort();
      }
    };
    const out = join(newFolder(), 'run');
    const asked = await run(`${flags} ${EXACT} --out ${out}`, { wrapUp: wrapUp.signal, onEvent });
    expect(seen).toEqual([2]);
    expect(asked.steps.map(({ validLoss }) => validLoss)).toEqual([undefined]);
    expect(asked.stopped).toBe(join(out, 'saves/step-000001'));
  });
});

it('an answer on its way does not keep a run that is to end at once', async () => {
  const stop = new AbortController();
  const seen: number[] = [];
  const onEvent = (event: RankEvent) => {
    if (event.type === 'evaluating' && event.total === 7) {
      seen.push(event.done);
      stop.abort(new Error('enough'));
    }
  };
  const ended = run(`${EXACT} --steps 1 --strategy single`, { signal: stop.signal, onEvent });
  await expect(ended).rejects.toThrow('enough');
  expect(seen).toEqual([1]);
});

describe('tools', () => {
  const user = (content: string) => ({ role: 'user', content });
  const call = (name: string) => ({
    role: 'assistant',
    content: null,
    tool_calls: [{ type: 'function', function: { name, arguments: {} } }],
  });
  const tiny = '--steps 1 --strategy single';

  it('are compared in three ways', async () => {
    const lines = ['on', 'off'].map((name) => ({ messages: [user(name), call(name)] }));
    const calls = jsonlFile(lines, { model, name: 'calls.jsonl' }).file;
    const { steps } = await run(`${tiny} --valid ${calls} --eval-task tools`);
    expect(steps[0]!.figures).toEqual({ exact: 0, json: 0, name: 0 });
  });

  it('refuses before the first step what can not be compared or has no room', async () => {
    const refused = async (line: object, task: string) => {
      const { file: other } = jsonlFile([line], { model, name: 'other.jsonl' });
      const steps: unknown[] = [];
      const onEvent = (event: RankEvent) => event.type === 'step' && steps.push(event);
      const failed = run(`${tiny} --valid ${other} --eval-task ${task}`, { onEvent });
      const message = await failed.then(
        () => 'none',
        (error: Error) => error.message,
      );
      expect(steps).toEqual([]);
      return message.replaceAll(/\/\S*\//g, '');
    };
    expect(await refused({ prompt: 'a', completion: 'b' }, 'tools')).toMatch(
      /^--eval-task tools: expected answers with "tool_calls" in other\.jsonl, .* Use --eval-task exact/,
    );
    const long = { prompt: 'a'.repeat(97), completion: 'b' };
    expect(await refused(long, 'exact')).toBe(
      '--eval-task exact: other.jsonl, line 1: the question has 97 tokens, and the model has 96 positions. Shorten it, or leave it out of --valid.',
    );
    expect(await refused({ text: 'only words' }, 'exact')).toMatch(
      /^--valid: other\.jsonl, line 1: expected \{"messages"\}/,
    );
  });
});
