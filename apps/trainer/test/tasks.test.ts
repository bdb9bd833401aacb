// Runs that learn to embed, to label and to rank. Their first losses are computed anew: texts by
// the library of tokenizers, rows of one text each by our encoder, and the losses in float64.

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Tokenizer } from '@huggingface/tokenizers';
import { afterAll, describe, expect, it } from 'vitest';
import {
  closeOwn,
  cosine,
  ownModel,
  SMALL,
  stateOf,
  textsOf,
} from '../../../packages/onnx/test/support/small-encoder.ts';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import {
  classifierFiles,
  embedderFiles,
  encoderFiles,
  writeFiles,
} from './support/encoder-files.js';
import { runCli } from './support/run-cli.js';
import type { RunRecord } from './support/run-flags.js';
import { lossesOf, runLine } from './support/tiny-run.js';

const LABELS = ['calm', 'storm', 'fog'];
const scratch = newFolder();
const embedder = writeFiles(join(scratch, 'embedder'), embedderFiles());
const encoder = writeFiles(join(scratch, 'encoder'), encoderFiles());
const classifier = writeFiles(join(scratch, 'classifier'), classifierFiles(LABELS));

afterAll(closeOwn);

const QUERIES = [
  ...['call me ishmael', 'some years ago', 'never mind how long precisely', 'money in my purse'],
  ...['nothing particular', 'interest on shore', 'i thought i would sail', 'the watery part'],
];
const PAIRS = QUERIES.map((query, i) => ({
  query,
  positive: `${QUERIES[(i + 3) % 8]} ${query}.`,
  negatives: [QUERIES[(i + 1) % 8]!, `${QUERIES[(i + 5) % 8]}, about`],
}));
const SCORED = QUERIES.map((a, i) => ({ a, b: PAIRS[(3 * i) % 8]!.positive, score: i / 7 }));
const LABELLED = QUERIES.map((text, i) => ({ text, label: LABELS[i % 3]! }));
const SEVERAL = QUERIES.map((text, i) => ({ text, labels: LABELS.slice(i % 4).reverse() }));

function lines(name: string, values: readonly object[]): string {
  const path = join(scratch, name);
  writeFileSync(path, values.map((value) => `${JSON.stringify(value)}\n`).join(''));
  return path;
}

const pairs = lines('pairs.jsonl', PAIRS);
const scored = lines('scored.jsonl', SCORED);
const labelled = lines('labelled.jsonl', LABELLED);
const several = lines('several.jsonl', SEVERAL);

/** Each kind of a task's data, as flags of runs without dropout. */
const TASKS = {
  pairs: `--task embed --model ${embedder} --data ${pairs}`,
  scores: `--task embed --model ${embedder} --data ${scored}`,
  'one label': `--task classify --model ${classifier} --data ${labelled}`,
  'several labels': `--task classify --model ${classifier} --data ${several}`,
  ranks: `--task rerank --model ${encoder} --data ${pairs}`,
};
const REST = '--device cpu --threads 1 --products wasm --dropout 0 --batch 8 --seq 32 --lr 0.001';

const run = (task: keyof typeof TASKS, more: string) => runLine(`${TASKS[task]} ${REST} ${more}`);

const texts = textsOf(SMALL);
const tokenizer = new Tokenizer(
  JSON.parse(texts.get('tokenizer.json')!),
  JSON.parse(texts.get('tokenizer_config.json')!),
);

/** The embedding of each text, of the mean of its rows. */
async function embeddings(all: readonly string[]): Promise<number[][]> {
  const model = await ownModel(SMALL, stateOf(SMALL));
  const found: number[][] = [];
  for (const text of all) {
    const rows = await model.rows(tokenizer.encode(text).ids);
    const width = SMALL.hidden_size;
    const mean = Array.from({ length: width }, (_, i) => {
      const column = rows.filter((_, at) => at % width === i);
      return column.reduce((sum, x) => sum + x, 0) / column.length;
    });
    found.push(mean);
  }
  return found;
}

async function logitsOf(all: readonly (readonly [string, string?])[]): Promise<number[][]> {
  const model = await ownModel(SMALL, stateOf(SMALL));
  const found: number[][] = [];
  for (const [text, other] of all) {
    const { ids, token_type_ids: types } = tokenizer.encode(text, {
      ...(other !== undefined && { text_pair: other }),
      return_token_type_ids: true,
    });
    found.push(await model.logits(ids, types));
  }
  return found;
}

const mean = (values: readonly number[]) => values.reduce((sum, x) => sum + x, 0) / values.length;
const logSumExp = (values: readonly number[]) => {
  const most = Math.max(...values);
  return most + Math.log(values.reduce((sum, x) => sum + Math.exp(x - most), 0));
};
const softplus = (x: number) => Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x)));

describe('the first loss', () => {
  const first = async (task: keyof typeof TASKS, more = '') =>
    (await run(task, `--strategy single --steps 1${more}`)).steps[0]!.loss;

  it('pairs are chosen among all documents, and all negatives', async () => {
    const queries = await embeddings(PAIRS.map(({ query }) => query));
    const positives = await embeddings(PAIRS.map(({ positive }) => positive));
    const negatives = await embeddings(PAIRS.flatMap((pair) => pair.negatives));
    const losses = queries.map((query, own) => {
      const scores = [...positives, ...negatives].map((row) => cosine(query, row) / 0.02);
      return logSumExp(scores) - scores[own]!;
    });
    expect(await first('pairs', ' --temperature 0.02')).toBeCloseTo(mean(losses), 4);
    const back = positives.map((positive, own) => {
      const scores = queries.map((row) => cosine(positive, row) / 0.02);
      return logSumExp(scores) - scores[own]!;
    });
    const both = (mean(losses) + mean(back)) / 2;
    expect(await first('pairs', ' --temperature 0.02 --symmetric')).toBeCloseTo(both, 4);
  });

  it('scores are compared with cosines, by squared errors', async () => {
    const [a, b] = [
      await embeddings(SCORED.map((pair) => pair.a)),
      await embeddings(SCORED.map((pair) => pair.b)),
    ];
    const errors = SCORED.map(({ score }, i) => (cosine(a[i]!, b[i]!) - score) ** 2);
    expect(await first('scores')).toBeCloseTo(mean(errors), 5);
  });

  it('one label a text has its cross-entropy', async () => {
    const logits = await logitsOf(LABELLED.map(({ text }) => [text]));
    const losses = LABELLED.map(
      ({ label }, i) => logSumExp(logits[i]!) - logits[i]![LABELS.indexOf(label)]!,
    );
    expect(await first('one label')).toBeCloseTo(mean(losses), 5);
    // Three texts are calm, three stormy and two foggy, and each third counts for as much.
    const weighted = losses.map((loss, i) => (loss * 8) / (3 * [3, 3, 2][i % 3]!));
    expect(await first('one label', ' --class-weights balanced')).toBeCloseTo(mean(weighted), 5);
  });

  it('several labels have a cross-entropy each', async () => {
    const logits = await logitsOf(SEVERAL.map(({ text }) => [text]));
    const losses = SEVERAL.flatMap(({ labels }, i) =>
      LABELS.map((label, id) => softplus((labels.includes(label) ? -1 : 1) * logits[i]![id]!)),
    );
    expect(await first('several labels')).toBeCloseTo(mean(losses), 5);
    // Two texts of eight are calm, four stormy and six foggy.
    const weighted = losses.map((loss, at) => {
      const [i, id] = [Math.floor(at / 3), at % 3];
      return SEVERAL[i]!.labels.includes(LABELS[id]!) ? loss * [3, 1, 1 / 3][id]! : loss;
    });
    const found = await first('several labels', ' --class-weights balanced');
    expect(found).toBeCloseTo(mean(weighted), 5);
  });

  it('ranks have a cross-entropy for each pair', async () => {
    const model = writeFiles(join(scratch, 'reranker'), classifierFiles(['LABEL_0']));
    const all = PAIRS.flatMap(({ query, positive, negatives }) =>
      [positive, ...negatives].map((text, i) => ({
        pair: [query, text] as const,
        isAnswer: i === 0,
      })),
    );
    const logits = await logitsOf(all.map(({ pair }) => pair));
    const losses = all.map(({ isAnswer }, i) => softplus((isAnswer ? -1 : 1) * logits[i]![0]!));
    const flags = `--task rerank --model ${model} --data ${pairs} ${REST} --steps 1`;
    const { steps } = await runLine(`${flags} --strategy single`);
    expect(steps[0]!.loss).toBeCloseTo(mean(losses), 5);
    expect(steps[0]!.targets).toBe(24);
  });
});

/** A kind of each objective runs, and with SHARDWEAVE_LONG=1 all of them. */
const isLong = process.env.SHARDWEAVE_LONG === '1';
const KINDS = (isLong
  ? Object.keys(TASKS)
  : ['pairs', 'one label']) as unknown as readonly (keyof typeof TASKS)[];

describe.each(KINDS)('%s', (task) => {
  const isPairs = task === 'pairs' || task === 'scores';

  it('have equal losses by every strategy, on any number of ranks', async () => {
    const single = await run(task, '--strategy single --steps 2');
    const wanted = lossesOf(single);
    expect(wanted[1]).toBeLessThan(wanted[0]!);
    const ways = [
      '--strategy ddp --ranks 4',
      '--strategy offload --slices 2',
      // Four of eight texts a micro-step leave the last of five ranks without one.
      isPairs ? '--strategy fsdp --ranks 4 --chunk-size 3' : '--ranks 5 --grad-accum 2',
    ];
    for (const way of ways) {
      const { steps } = await run(task, `${way} --steps 2`);
      for (const [i, { loss, gradNorm }] of steps.entries()) {
        expect(Math.abs(loss / wanted[i]! - 1), `${way}, step ${i + 1}`).toBeLessThan(3e-6);
        // AdamW's steps would be the same whatever the gradients are multiplied by.
        expect(gradNorm! / single.steps[i]!.gradNorm!, way).toBeCloseTo(1, 4);
      }
    }
  });

  it.runIf(isLong || isPairs)(
    'go on from a save, and leave a model that eval finds as good',
    async () => {
      const valid = { pairs, scores: scored, 'one label': labelled, 'several labels': several };
      const data = task === 'ranks' ? pairs : valid[task];
      const out = join(scratch, task.replace(' ', '-'));
      const flags = `--ranks 2 --schedule constant --valid ${data} --eval-every 1 --out ${out}`;
      const whole = await run(task, `${flags}-whole --steps 3`);
      await run(task, `${flags} --save-every 2 --steps 2`);
      const again = await run(task, `${flags} --save-every 2 --steps 3 --resume auto`);
      expect(again.resumed?.step).toBe(2);
      expect(told(again)).toEqual(told(whole).slice(2));
      const { out: text, err } = await runCli(
        `eval --model ${out} --data ${data} --seq 32 --batch 8 --device cpu --threads 1 --json`.split(
          ' ',
        ),
      );
      expect(err).toBe('');
      const found = JSON.parse(text) as { loss: number; values: Record<string, number> };
      const last = again.steps.at(-1)!;
      expect(found.loss).toBeCloseTo(last.validLoss!, 4);
      expect(Object.keys(found.values)).toEqual(Object.keys(last.figures!));
      for (const [name, value] of Object.entries(last.figures!)) {
        expect(found.values[name], name).toBeCloseTo(value, 5);
      }
    },
  );
});

it.each([
  ['embed', `--task embed --model ${encoder} --pooling cls --data ${pairs}`],
  ['classify', `--task classify --model ${encoder} --data ${labelled}`],
])('adapters that %s say what their head is, alone and merged', async (task, flags) => {
  const out = join(scratch, `lora-${task}`);
  const data = flags.split(' ').at(-1)!;
  const lora = `--lora-rank 2 --strategy single --valid ${data} --steps 2 --out ${out}`;
  const { steps } = await runLine(`${flags} ${REST} ${lora}`);
  const merged = join(scratch, `merged-${task}`);
  const merge = `merge --model ${encoder} --adapter ${out} --out ${merged}`;
  expect((await runCli(merge.split(' '))).err).toBe('');
  for (const model of [`${encoder} --adapter ${out}`, merged]) {
    const line = `eval --model ${model} --data ${data} --seq 32 --batch 8 --device cpu --threads 1 --json`;
    const { out: text, err } = await runCli(line.split(' '));
    expect(err).toBe('');
    const found = JSON.parse(text) as { task: string; loss: number };
    expect(found.task).toBe(task);
    expect(found.loss).toBeCloseTo(steps.at(-1)!.validLoss!, 4);
  }
});

const told = ({ steps }: RunRecord) =>
  steps.map(({ step, loss, validLoss, figures }) => ({ step, loss, validLoss, figures }));
