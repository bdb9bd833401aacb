// Examples become framed ids, and the batches of steps: each once an epoch, the same ones whatever
// the number of ranks and micro-steps, and kept apart by line.

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parquetWriteBuffer } from 'hyparquet-writer';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import type { Examples, TaskExample } from '../src/data/example-data.js';
import { Framer } from '../src/data/example-file.js';
import { headOf } from '../src/data/known-labels.js';
import { prepareTokens } from '../src/data/prepare-tokens.js';
import { TokenFile } from '../src/data/token-file.js';
import { UsageError } from '../src/errors.js';
import { labelId } from '../src/task/task-head.js';
import { classifierFiles, embedderFiles } from './support/encoder-files.ts';
import { batchesOf, linesFile, modelFolder, openTask } from './support/example-files.ts';
import { configOf } from './support/jsonl-data.ts';

/** Ids of the small BERT's words; CLS and SEP stand around texts. */
const ID = { call: 13, me: 14, ishmael: 15, some: 16, years: 17, ago: 18, never: 19 } as const;
const [CLS, SEP] = [2, 3];
const WORDS = Object.keys(ID) as (keyof typeof ID)[];

const idsOf = ({ texts }: TaskExample) => texts.map(({ ids }) => Array.from(ids));
const framed = (...ids: number[]) => [CLS, ...ids, SEP];
/** A text that no other number has: its digits in base 7, as words. */
const textOf = (number: number) =>
  [...number.toString(7).padStart(3, '0')].map((digit) => WORDS[Number(digit)]!).join(' ');
const numberOf = (ids: readonly number[]) =>
  Number.parseInt(
    ids
      .slice(1, 4)
      .map((id) => id - ID.call)
      .join(''),
    7,
  );
const model = modelFolder();

describe('a framed text', () => {
  const frame = { begin: [CLS], between: [SEP], end: [SEP] };
  const count = (n: number, from = 10) => Uint32Array.from({ length: n }, (_, i) => from + i);
  const pairOf = (most: number, first: number, second: number) => {
    const { ids, tokenTypes } = new Framer(frame, { most, hasPairs: true }).pair(
      count(first),
      count(second, 20),
    );
    return { ids: Array.from(ids), types: Array.from(tokenTypes!).join('') };
  };

  it('is cut at its end to what a row holds', () => {
    const framer = new Framer(frame, { most: 5, hasPairs: false });
    expect(framer.text(count(2)).ids).toEqual([CLS, 10, 11, SEP]);
    expect(framer.text(count(3)).ids).toEqual([CLS, 10, 11, 12, SEP]);
    expect(framer.text(count(4)).ids).toEqual([CLS, 10, 11, 12, SEP]);
    expect([2, 3, 4, 90].map((length) => framer.framedLength(length))).toEqual([4, 5, 5, 5]);
  });

  it('is one of two texts, of which the longer one is cut first', () => {
    expect(pairOf(9, 3, 3)).toEqual({
      ids: [CLS, 10, 11, 12, SEP, 20, 21, 22, SEP],
      types: '000001111',
    });
    expect(pairOf(8, 4, 1).ids).toEqual([CLS, 10, 11, 12, 13, SEP, 20, SEP]);
    expect(pairOf(8, 9, 1).ids).toEqual([CLS, 10, 11, 12, 13, SEP, 20, SEP]);
    expect(pairOf(8, 1, 9)).toEqual({
      ids: [CLS, 10, SEP, 20, 21, 22, 23, SEP],
      types: '00011111',
    });
    expect(pairOf(8, 9, 9).ids).toEqual([CLS, 10, 11, 12, SEP, 20, 21, SEP]);
    expect(pairOf(5, 9, 9).ids).toEqual([CLS, 10, SEP, 20, SEP]);
    const framer = new Framer(frame, { most: 8, hasPairs: true });
    expect(framer.framedLength(2, 2)).toBe(7);
    expect(framer.framedLength(9, 9)).toBe(8);
  });

  it('has room for words in a row, or the row is refused', async () => {
    expect(() => new Framer(frame, { most: 2, hasPairs: false })).toThrowError(
      new UsageError(
        'a row of 2 tokens has no room for words: 2 stand around a text. Give --seq 3 at least.',
      ),
    );
    expect(() => new Framer(frame, { most: 4, hasPairs: true })).toThrowError(
      new UsageError(
        'a row of 4 tokens has no room for words: 3 stand around a pair. Give --seq 5 at least.',
      ),
    );
    const pairs = linesFile([{ query: 'call', positive: 'me', negatives: ['ago'] }]);
    const rerank = `--model ${model} --task rerank --batch 1 --data ${pairs}`;
    await expect(openTask(`${rerank} --seq 4`)).rejects.toThrowError('Give --seq 5 at least.');
    await using least = await openTask(`${rerank} --seq 5`);
    expect(idsOf((await least.train.at([0]))[0]!)).toEqual([
      [CLS, ID.call, SEP, ID.me, SEP],
      [CLS, ID.call, SEP, ID.ago, SEP],
    ]);
    const text = linesFile([
      { text: 'call me', label: 'a' },
      { text: 'ago', label: 'b' },
    ]);
    const classify = `--model ${model} --task classify --data ${text}`;
    await expect(openTask(`${classify} --seq 2`)).rejects.toThrowError(UsageError);
    await using short = await openTask(`${classify} --seq 3`);
    expect(idsOf((await short.train.at([0]))[0]!)).toEqual([framed(ID.call)]);
  });

  it('has the prompt of its side, and the length that the embedder learnt with', async () => {
    const prompts = { query: 'call ', document: 'some ' };
    const embedder = modelFolder(embedderFiles({ prompts, maxSeqLength: 5 }));
    const file = linesFile([
      { query: 'me', positive: 'years', negatives: ['ago'] },
      { query: 'never me ago', positive: 'ago', negatives: ['me'] },
    ]);
    await using data = await openTask(`--model ${embedder} --task embed --batch 2 --data ${file}`);
    const [first, second] = await data.train.at([0, 1]);
    expect(idsOf(first!)).toEqual([
      framed(ID.call, ID.me),
      framed(ID.some, ID.years),
      framed(ID.some, ID.ago),
    ]);
    expect(idsOf(second!)[0]).toEqual(framed(ID.call, ID.never, ID.me));
    expect(data.train.numTokens(0)).toBe(4 + 4 + 4 + 5 + 4 + 4);
    const other = modelFolder(embedderFiles({ prompts: { corpus: 'ago ', passage: 'some ' } }));
    await using passages = await openTask(`--model ${other} --task embed --batch 2 --data ${file}`);
    const [example] = await passages.train.at([0]);
    expect(idsOf(example!).slice(0, 2)).toEqual([framed(ID.me), framed(ID.some, ID.years)]);
  });
});

/** Examples to classify, each of which is known by its text. */
const CLASSES = linesFile(
  Array.from({ length: 10 }, (_, i) => ({ text: textOf(i), label: 'abc'[i % 3]! })),
);
const numbersIn = (examples: readonly TaskExample[]) =>
  examples.map((example) => numberOf(idsOf(example)[0]!));
const stepOf = async (data: Examples, step: number, ranks = 1) =>
  (await batchesOf(data, step, ranks)).flat().flatMap(({ examples }) => numbersIn(examples));

describe('the examples of steps', () => {
  it('are each taken once an epoch, in an order of its own, which depends on the seed', async () => {
    const flags = `--model ${model} --task classify --batch 4 --data ${CLASSES}`;
    const epochs = async (more: string) => {
      await using data = await openTask(`${flags}${more}`);
      expect([data.train.numSteps, data.train.size.rows]).toEqual([3, 10]);
      const all: number[] = [];
      for (let step = 0; step < 5; step++) {
        all.push(...(await stepOf(data.train, step)));
      }
      return [all.slice(0, 10), all.slice(10, 20)];
    };
    const [first, second] = await epochs('');
    const sorted = (list: readonly number[]) => [...list].sort((a, b) => a - b);
    expect(sorted(first!)).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    expect(sorted(second!)).toEqual(sorted(first!));
    expect(second).not.toEqual(first);
    expect(await epochs('')).toEqual([first, second]);
    expect((await epochs(' --seed 9'))[0]).not.toEqual(first);
    const inTurn = await epochs(' --order sequential');
    expect(inTurn).toEqual([sorted(first!), sorted(first!)]);
  });

  it('are shared by ranks and micro-steps without one left out or taken twice', async () => {
    const flags = `--model ${model} --task classify --batch 7 --data ${CLASSES}`;
    await using alone = await openTask(flags);
    await using shared = await openTask(`${flags} --ranks 3 --grad-accum 2`);
    expect(shared.train.numMicroSteps).toBe(2);
    for (let step = 0; step < 4; step++) {
      const batches = await batchesOf(shared.train, step, 3);
      expect(batches.flat().map(({ examples }) => examples.length)).toEqual([2, 1, 1, 1, 1, 1]);
      expect(batches.flat().map(({ firstRow }) => firstRow)).toEqual([0, 2, 3, 4, 5, 6]);
      const own = await stepOf(alone.train, step);
      expect(batches.flat().flatMap(({ examples }) => numbersIn(examples))).toEqual(own);
      expect(await shared.train.numTargets(step)).toBe(7);
    }
  });

  it('are pairs as many on each rank, of whole steps', async () => {
    const pairs = linesFile(
      Array.from({ length: 11 }, (_, i) => ({ query: textOf(i), positive: textOf(i + 20) })),
    );
    const flags = `--model ${model} --task embed --batch 4 --ranks 2 --data ${pairs}`;
    await using data = await openTask(`${flags} --valid ${pairs}`);
    const { train, valid } = data;
    expect([train.numSteps, train.size.rows, train.size.documents]).toEqual([2, 8, 11]);
    const seen = [...(await stepOf(train, 0, 2)), ...(await stepOf(train, 1, 2))];
    expect(new Set(seen).size).toBe(8);
    expect(valid!.count).toBe(11);
    expect(await stepOf(valid!, 1, 2)).toEqual([4, 5, 6, 7]);
    const few = linesFile([
      { query: 'call', positive: 'me' },
      { query: 'some', positive: 'years' },
      { query: 'ago', positive: 'never' },
    ]);
    await expect(openTask(`--model ${model} --task embed --batch 4 --data ${few}`)).rejects.toThrow(
      `--data: ${few} has 3 examples, fewer than --batch 4. Give more of them, or --batch 3 at most.`,
    );
    await expect(
      openTask(
        `--model ${model} --task embed --batch 2 --ranks 2 --valid-fraction 0.5 --data ${few}`,
      ),
    ).rejects.toThrow(
      `--data: ${few} has 3 examples, of which --valid-fraction 0.5 leaves 1 to train on, fewer than --batch 2. Give more of them.`,
    );
    await expect(
      openTask(
        `${flags.replace('--batch 4 --ranks 2', '--batch 3 --ranks 3')} --valid-fraction 0.2`,
      ),
    ).rejects.toThrow(`--valid-fraction: ${pairs} has 2 examples for it, fewer than 3 ranks.`);
    await using small = await openTask(`${flags} --valid ${few}`);
    const batches = await batchesOf(small.valid!, 0, 2);
    expect(batches.flat().map(({ examples }) => examples.length)).toEqual([1, 1]);
  });

  it('may be fewer than ranks, where each text is learnt by itself', async () => {
    const flags = `--model ${model} --task classify --ranks 12 --batch 12 --data ${CLASSES}`;
    await using data = await openTask(`${flags} --valid ${CLASSES}`);
    const counts = (batches: Awaited<ReturnType<typeof batchesOf>>) =>
      batches.flat().map(({ examples }) => examples.length);
    expect(counts(await batchesOf(data.train, 0, 12))).toEqual(Array(12).fill(1));
    expect(counts(await batchesOf(data.valid!, 0, 12))).toEqual([...Array(10).fill(1), 0, 0]);
  });

  it('are evaluated in turn, each once, and no more than its batches', async () => {
    const flags = `--model ${model} --task classify --batch 4 --data ${CLASSES} --valid ${CLASSES}`;
    await using data = await openTask(`${flags} --ranks 3`);
    const { valid } = data;
    expect([valid!.numSteps, valid!.count]).toEqual([3, 10]);
    const steps = await Promise.all([0, 1, 2].map((step) => stepOf(valid!, step, 3)));
    expect(steps).toEqual([
      [0, 1, 2, 3],
      [4, 5, 6, 7],
      [8, 9],
    ]);
    expect(await valid!.numTargets(2)).toBe(2);
    await using fewer = await openTask(`${flags} --eval-batches 2`);
    expect([fewer.valid!.numSteps, fewer.valid!.count]).toEqual([2, 8]);
  });

  it('are kept apart by --valid-fraction in whole lines', async () => {
    const lines = linesFile(
      Array.from({ length: 10 }, (_, i) => ({
        query: textOf(i),
        pos: [textOf(2 * i + 20), textOf(2 * i + 21)],
        neg: ['me'],
      })),
    );
    const flags = `--model ${model} --task embed --batch 2 --data ${lines}`;
    const apart = async (more: string) => {
      await using data = await openTask(`${flags} --valid-fraction 0.3 ${more}`);
      const [train, valid] = await Promise.all(
        [data.train, data.valid!].map(async (part) =>
          numbersIn(await part.at(Array.from({ length: part.count }, (_, i) => i))),
        ),
      );
      expect([train!.length, valid!.length]).toEqual([14, 6]);
      expect(new Set(valid!).size).toBe(3);
      expect([...new Set([...train!, ...valid!])]).toHaveLength(10);
      return valid;
    };
    expect(await apart('--seed 5')).toEqual(await apart('--seed 6'));
    await expect(openTask(`${flags} --valid-fraction 0.97`)).rejects.toThrow(
      'has examples in 10 lines, so none would be left to train on.',
    );
  });
});

describe('the negatives of a query', () => {
  const documents = (example: TaskExample) => idsOf(example).slice(1).map(numberOf);

  it('are drawn anew in each epoch, each at most once', async () => {
    const neg = Array.from({ length: 9 }, (_, i) => textOf(10 + i));
    const lines = linesFile([0, 1].map((i) => ({ query: textOf(i), pos: [textOf(5 + i)], neg })));
    const flags = `--task embed --order sequential --batch 2 --negatives 3 --data ${lines}`;
    await using data = await openTask(`--model ${model} ${flags}`);
    const seen = new Set<number>();
    const draws = new Set<string>();
    for (let epoch = 0; epoch < 8; epoch++) {
      const { examples } = await data.train.microBatch(epoch, 0, 0);
      for (const [i, example] of examples.entries()) {
        const [positive, ...drawn] = documents(example);
        expect(positive).toBe(5 + i);
        expect(new Set(drawn).size).toBe(3);
        expect(drawn.every((number) => number >= 10)).toBe(true);
        drawn.map((number) => seen.add(number));
        draws.add(drawn.join());
      }
    }
    expect(seen.size).toBe(9);
    expect(draws.size).toBeGreaterThan(12);
    await using none = await openTask(
      `--model ${model} ${flags} --negatives 0`.replace('--negatives 3 ', ''),
    );
    expect(documents((await none.train.at([0]))[0]!)).toEqual([5]);
  });

  it('are filled up from the documents of other lines', async () => {
    const lines = linesFile([
      { query: textOf(0), pos: [50, 51, 52, 53].map(textOf), neg: [] },
      { query: textOf(1), pos: [textOf(60)], neg: [70, 71, 72].map(textOf) },
      { query: textOf(2), pos: [textOf(61)], neg: [textOf(73)] },
    ]);
    const flags = `--task embed --order sequential --batch 6 --data ${lines}`;
    await using data = await openTask(`--model ${model} ${flags}`);
    const drawn = new Set<number>();
    for (let epoch = 0; epoch < 20; epoch++) {
      const { examples } = await data.train.microBatch(epoch, 0, 0);
      const all = examples.map((example) => documents(example).slice(1));
      expect(all.map(({ length }) => length)).toEqual([3, 3, 3, 3, 3, 3]);
      all
        .slice(0, 4)
        .flat()
        .map((number) => drawn.add(number));
      expect([...all[4]!].sort()).toEqual([70, 71, 72]);
      expect(all[5]![0]).toBe(73);
      expect(all[5]).not.toContain(61);
    }
    expect([...drawn].sort()).toEqual([60, 61]);
  });

  it('are those of its line alone for a reranker', async () => {
    const lines = linesFile([
      { query: 'call', positive: 'me', negatives: ['some', 'ago'] },
      { query: 'some', positive: 'years', negatives: ['never'] },
    ]);
    await using data = await openTask(`--model ${model} --task rerank --batch 2 --data ${lines}`);
    const [first, second] = await data.train.at([0, 1]);
    expect([first!.labels, second!.labels]).toEqual([
      [1, 0, 0],
      [1, 0],
    ]);
    expect(idsOf(second!)).toEqual([
      [CLS, ID.some, SEP, ID.years, SEP],
      [CLS, ID.some, SEP, ID.never, SEP],
    ]);
    expect(await data.train.numTargets(0)).toBe(5);
    expect(data.train.numTokens(0)).toBe(25);
    await expect(
      openTask(`--model ${model} --task rerank --batch 2 --negatives 0 --data ${lines}`),
    ).rejects.toThrowError('--negatives 0: a reranker that sees answers alone');
  });
});

describe('the labels of examples', () => {
  const classify = (labels: readonly unknown[], name = 'labels') =>
    linesFile(labels.map((label, i) => ({ text: textOf(i), [name]: label })));
  const idsIn = async (flags: string, part: 'train' | 'valid' = 'train') => {
    await using data = await openTask(`--task classify ${flags}`);
    const examples = data[part]!;
    const all = await examples.at(Array.from({ length: examples.count }, (_, i) => i));
    return all.map(({ labels }) => labels);
  };
  const named = modelFolder(classifierFiles(['calm', 'storm', 'fog']));

  it('are ids in the order of names or of numbers, whatever comes first', async () => {
    expect(await idsIn(`--model ${model} --data ${classify(['b', 'c', 'a'])}`)).toEqual([
      [1],
      [2],
      [0],
    ]);
    expect(await idsIn(`--model ${model} --data ${classify([10, 9, -1])}`)).toEqual([
      [2],
      [1],
      [0],
    ]);
    expect(await idsIn(`--model ${model} --data ${classify([true, false])}`)).toEqual([[1], [0]]);
    expect(await idsIn(`--model ${model} --data ${classify([['b'], [], ['a', 'b']])}`)).toEqual([
      [1],
      [],
      [0, 1],
    ]);
  });

  it('are those of the model, by name or by number', async () => {
    expect(await idsIn(`--model ${named} --data ${classify(['fog', 'calm'])}`)).toEqual([[2], [0]]);
    expect(await idsIn(`--model ${named} --data ${classify([1, 2])}`)).toEqual([[1], [2]]);
    expect(await idsIn(`--model ${named} --data ${classify(['rain', 'fog'])}`)).toEqual([[1], [0]]);
  });

  it('are no ids where their names are numbers', () => {
    const stars = ['1', '2', '3'];
    expect(['1', '3'].map((label) => labelId(label, stars))).toEqual([0, 2]);
    expect(labelId('0', stars)).toBeUndefined();
    const names = ['calm', 'storm'];
    expect(['0', '1', '2', '01', '-1', ''].map((label) => labelId(label, names))).toEqual([
      0,
      1,
      ...[undefined, undefined, undefined, undefined],
    ]);
  });

  it('are those of the run in other data, or refused', async () => {
    const data = classify(['a', 'b']);
    const valid = (labels: readonly unknown[]) => `--data ${data} --valid ${classify(labels)}`;
    expect(await idsIn(`--model ${model} ${valid(['b'])}`, 'valid')).toEqual([[1]]);
    await expect(idsIn(`--model ${model} ${valid(['c'])}`)).rejects.toThrowError(
      /^--valid: .* has the label "c", but the model's are a, b\. Rename it/,
    );
    await expect(idsIn(`--model ${model} ${valid([['a', 'b']])}`)).rejects.toThrowError(
      /^--valid: .* has lists of labels, but the model gives one to each text\./,
    );
    const lists = classify([['a'], ['a', 'b']]);
    const alone = `--data ${lists} --valid ${data}`;
    expect(await idsIn(`--model ${model} ${alone}`, 'valid')).toEqual([[0], [1]]);
  });

  it('are two or more, or one that a text has or not', async () => {
    const head = async (labels: readonly unknown[], own = model) => {
      const config = await configOf(
        `--model ${own} --task classify --ranks 1 --data ${classify(labels)}`,
      );
      return await headOf(config, await prepareTokens(config, { entry: '' }));
    };
    await expect(head(['a', 'a'])).rejects.toThrowError(
      '--data: expected two labels or more, got a alone.',
    );
    await expect(head([[], []])).rejects.toThrowError(
      '--data: expected a label or more, got none.',
    );
    expect(await head([['a'], []])).toMatchObject({
      labels: ['a'],
      problemType: 'multi_label_classification',
    });
    expect(await head(['fog', 'fog'], named)).toMatchObject({ labels: ['calm', 'storm', 'fog'] });
  });
});

it('a table has the column of labels read beside that of texts', async () => {
  const path = join(newFolder(), 'table.parquet');
  const columnData = [
    { name: 'text', type: 'STRING', data: ['call', 'me'] },
    { name: 'label', type: 'INT32', data: [1, 0] },
    { name: 'text_pair', type: 'STRING', data: ['ago', 'never'] },
  ] as const;
  writeFileSync(path, Buffer.from(parquetWriteBuffer({ columnData: columnData as never })));
  await using data = await openTask(`--model ${model} --task classify --data ${path}`);
  const all = await data.train.at([0, 1]);
  expect(all.map(({ labels }) => labels)).toEqual([[1], [0]]);
  expect(idsOf(all[0]!)).toEqual([[CLS, ID.call, SEP, ID.ago, SEP]]);
});

it('an epoch of examples is as many steps as it takes, with labels that no file knew before', async () => {
  const flags = `--model ${model} --task classify --ranks 1 --batch 4 --epochs 2 --data ${CLASSES}`;
  expect(await configOf(flags)).toMatchObject({ steps: 5 });
});

it('tokens of one task are not taken for those of another, or of another prompt', async () => {
  const file = linesFile([
    { text: 'call', label: 1, query: 'call', positive: 'me', negatives: ['ago'] },
    { text: 'me', label: 0, query: 'me', positive: 'call', negatives: ['ago'] },
  ]);
  const cache = newFolder();
  const prompted = modelFolder(embedderFiles({ prompts: { query: 'some ' } }));
  const [plain, decoder] = [modelFolder(embedderFiles()), 'nano'];
  const paths: string[] = [];
  for (const [own, task] of [
    [plain, 'embed'],
    [plain, 'classify'],
    [plain, 'rerank'],
    [prompted, 'embed'],
    [decoder, 'lm'],
  ]) {
    const config = await configOf(
      `--model ${own} --task ${task} --ranks 1 --data ${file} --cache ${cache}`,
    );
    const { train: parts } = await prepareTokens(config, { entry: '' });
    expect((await prepareTokens(config, { entry: '' })).train).toEqual(parts);
    const train = parts[0]!.directory;
    await using tokens = await TokenFile.open(train);
    expect(tokens.index.kind).toBe(task === 'lm' ? 'documents' : 'examples');
    paths.push(train);
  }
  expect(new Set(paths).size).toBe(5);
});
