// Each line in which people keep examples is read as the example that it means, and what is none is
// refused with its place.

import { describe, expect, it } from 'vitest';
import { type Example, type ExampleTask, readExamples } from '../src/data/example-shapes.js';
import { prepareTokens } from '../src/data/prepare-tokens.js';
import { UsageError } from '../src/errors.js';
import { linesFile, modelFolder } from './support/example-files.ts';
import { configOf } from './support/jsonl-data.ts';

type Told = Partial<Example>;
type Case = readonly [line: object, ...examples: Told[]];

const pair = (first: string, second: string, ...negatives: string[]): Told => ({
  ...{ first, second, negatives, kind: 'pairs' },
});
const scored = (first: string, second: string, score: number): Told => ({
  ...{ first, second, negatives: [], score, kind: 'scored pairs' },
});
const labelled = (first: string, ...labels: string[]): Told => ({
  ...{ first, negatives: [], labels, kind: 'one label' },
});
const several = (first: string, ...labels: string[]): Told => ({
  ...labelled(first, ...labels),
  kind: 'several labels',
});
const two = (first: string, second: string, ...labels: string[]): Told => ({
  ...labelled(first, ...labels),
  second,
});

const CASES: Readonly<Record<ExampleTask, readonly Case[]>> = {
  embed: [
    [{ query: 'q', positive: 'p' }, pair('q', 'p')],
    [
      { query: 'q', pos: ['p', 'r'], neg: ['n', 'm'] },
      pair('q', 'p', 'n', 'm'),
      pair('q', 'r', 'n', 'm'),
    ],
    [
      { query: 'q', pos: ['p'], neg: [], pos_scores: [1], neg_scores: [], prompt: 'x' },
      pair('q', 'p'),
    ],
    [{ anchor: 'a', positive: 'p', negative: 'n' }, pair('a', 'p', 'n')],
    [{ anchor: 'a', positive: 'p', negative_1: 'n', negative_2: 'm' }, pair('a', 'p', 'n', 'm')],
    [{ query: 'q', positive: 'p', negative_1: 'n', negative_2: '' }, pair('q', 'p', 'n')],
    [{ query: 'q', positive: 'p', negatives: ['n'] }, pair('q', 'p', 'n')],
    [{ query: 'q', positive: 'p', negatives: null }, pair('q', 'p')],
    [{ query: 'q', positive: 'p', neg1: 'n' }, pair('q', 'p', 'n')],
    [{ question: 'q', answer: 'p' }, pair('q', 'p')],
    [{ query: 'q', document: 'p' }, pair('q', 'p')],
    [{ query: 'q', passage: 'p' }, pair('q', 'p')],
    [{ a: 'x', b: 'y', score: 0.5 }, scored('x', 'y', 0.5)],
    [{ sentence1: 'x', sentence2: 'y', score: '0.25' }, scored('x', 'y', 0.25)],
    [{ text1: 'x', text2: 'y', similarity_score: 1 }, scored('x', 'y', 1)],
    [{ sentence1: 'x', sentence2: 'y', score: -1 }, scored('x', 'y', -1)],
  ],
  classify: [
    [{ text: 't', label: 'sad' }, labelled('t', 'sad')],
    [{ text: 't', label: ' sad\t' }, labelled('t', 'sad')],
    [{ text: 't', label: 3 }, labelled('t', '3')],
    [{ text: 't', label: false }, labelled('t', 'false')],
    [{ text: 't', labels: ['a', 'b'] }, several('t', 'a', 'b')],
    [{ text: 't', labels: [] }, several('t')],
    [{ sentence: 't', label: 0, idx: 7 }, labelled('t', '0')],
    [{ content: 't', category: 'x' }, labelled('t', 'x')],
    [{ text: 't', class: 'x' }, labelled('t', 'x')],
    [{ text: 't', text_pair: 'u', label: 1 }, two('t', 'u', '1')],
    [{ text: 't', text_pair: null, label: 1 }, labelled('t', '1')],
    [{ sentence1: 't', sentence2: 'u', label: 1, idx: 0 }, two('t', 'u', '1')],
    [{ text1: 't', text2: 'u', label: 1 }, two('t', 'u', '1')],
    [{ premise: 't', hypothesis: 'u', label: 2 }, two('t', 'u', '2')],
    [{ question: 't', sentence: 'u', label: 1, idx: 0 }, two('t', 'u', '1')],
    [{ question1: 't', question2: 'u', label: 1 }, two('t', 'u', '1')],
  ],
  rerank: [
    [{ query: 'q', positive: 'p', negatives: ['n'] }, pair('q', 'p', 'n')],
    [{ query: 'q', pos: ['p', 'r'], neg: ['n'] }, pair('q', 'p', 'n'), pair('q', 'r', 'n')],
    [{ query: 'q', document: 'd', score: 0.5 }, scored('q', 'd', 0.5)],
    [{ query: 'q', passage: 'd', label: 1 }, scored('q', 'd', 1)],
    [{ question: 'q', answer: 'd', label: true }, scored('q', 'd', 1)],
    [{ query: 'q', document: 'd', score: '0' }, scored('q', 'd', 0)],
  ],
};

/** Lines that are refused, by task, each with what is said of it. */
const REFUSED: Readonly<Record<ExampleTask, readonly (readonly [object, string])[]>> = {
  embed: [
    [
      { text: 'q' },
      '{"query", "positive", "negatives"?} or {"a", "b", "score"} for --task embed, got an object with "text".',
    ],
    [{}, 'got an object with nothing in it'],
    [{ query: 'q' }, 'got an object with "query"'],
    [{ query: 'q', positive: '' }, 'expected words in "positive", got ""'],
    [{ query: 'q', positive: [] }, 'expected words in "positive", got []'],
    [{ query: '', positive: 'p' }, 'expected words in "query", got ""'],
    [{ query: ['q'], positive: 'p' }, 'expected words in "query", got ["q"]'],
    [{ query: 'q', positive: 'p', negatives: ['n', 3] }, 'expected words in "negatives", got 3'],
    [{ query: 'q', positive: 'p', negatives: [''] }, 'expected words in "negatives", got ""'],
    [{ query: 'q', positive: 'p', negatives: [['n']] }, 'expected words in "negatives", got ["n"]'],
    [{ a: 'x', b: 'y', score: 'high' }, 'expected a number in "score", got "high"'],
    [{ a: 'x', b: 'y', score: '' }, 'expected a number in "score", got ""'],
    [{ a: 'x', b: 'y', score: [1] }, 'expected a number in "score", got [1]'],
    [{ a: 'x', b: 'y', score: 4.5 }, 'expected "score" from -1 to 1, as cosines are, got 4.5.'],
    [{ a: 'x', b: '', score: 1 }, 'expected words in "b", got ""'],
    [{ sentence1: 'x', sentence2: 'y' }, 'got an object with "sentence1", "sentence2"'],
  ],
  classify: [
    [{ text: 't' }, '{"text", "label"} for --task classify, got an object with "text"'],
    [{ label: 't' }, 'got an object with "label"'],
    [{ text: 't', label: null }, 'got an object with "text", "label"'],
    [{ text: 't', label: 0.5 }, 'a whole number, or a list of labels in "label", got 0.5'],
    [{ text: 't', label: '' }, 'got ""'],
    [{ text: 't', label: ' ' }, 'got " "'],
    [{ text: 't', label: {} }, 'got {}'],
    [{ text: 't', label: ['a', ['b']] }, 'got ["b"]'],
    [{ text: '', label: 'a' }, 'expected words in "text", got ""'],
    [{ text: 't', text_pair: 3, label: 'a' }, 'expected words in "text_pair", got 3'],
  ],
  rerank: [
    [{ query: 'q', positive: 'p' }, 'expected "negatives" beside the query'],
    [{ query: 'q', positive: 'p', negatives: [] }, 'expected "negatives" beside the query'],
    [
      { query: 'q', document: 'd', score: 3 },
      'expected "score" from 0 to 1, from no answer to an answer, got 3.',
    ],
    [{ query: 'q', document: 'd', score: -0.5 }, 'got -0.5. Divide scores by the largest one.'],
    [{ query: 'q', document: 'd', label: 'yes' }, 'expected a number in "label", got "yes"'],
    [
      { sentence1: 'x', sentence2: 'y', score: 1 },
      '{"query", "document", "score"} for --task rerank',
    ],
  ],
};

const TASKS = ['embed', 'classify', 'rerank'] as const;

describe.each(TASKS)('a line of --task %s', (task) => {
  it.each(CASES[task])('is read by its names: %j', (line, ...examples) => {
    const found = readExamples({ ...line }, task);
    expect(found).toHaveLength(examples.length);
    for (const [i, example] of examples.entries()) {
      const { second, ...rest } = found[i]!;
      expect({ ...rest, ...(second !== undefined && { second }) }).toEqual(example);
    }
  });

  it.each(REFUSED[task])('is refused as what it is: %j', (line, says) => {
    expect(() => readExamples({ ...line }, task)).toThrowError(UsageError);
    expect(() => readExamples({ ...line }, task)).toThrowError(says);
  });
});

/** What is said of a file, without its folder. */
async function refusal(task: ExampleTask, file: string): Promise<string> {
  const config = await configOf(`--model ${modelFolder()} --task ${task} --ranks 1 --data ${file}`);
  const error = await prepareTokens(config, { entry: '' }).catch((cause: unknown) => cause);
  expect(error).toBeInstanceOf(UsageError);
  return (error as Error).message.replaceAll(/\/\S*\//g, '');
}

describe('a file of examples', () => {
  const good = { text: 'call me', label: 'a' };

  it('is refused with the line that is wrong', async () => {
    const lines = linesFile([good, good, { text: 'never', label: 1.5 }]);
    expect(await refusal('classify', lines)).toMatch(
      /^--data: data\.jsonl, line 3: expected a label/,
    );
    const broken = linesFile([good, '{"text": ']);
    expect(await refusal('classify', broken)).toMatch(
      /^--data: data\.jsonl, line 2: expected a line of JSON/,
    );
    const csv = linesFile(['text,label', 'call me,a', 'never,'], 'data.csv');
    expect(await refusal('classify', csv)).toMatch(
      /^--data: data\.csv, line 3: expected a label.*got ""/,
    );
    const tsv = linesFile(['query\tpositive\tnegative_1', 'who\tme\thow', 'who\tme\t'], 'data.tsv');
    expect(await refusal('rerank', tsv)).toMatch(
      /^--data: data\.tsv, line 3: expected "negatives"/,
    );
  });

  it('has one kind of them', async () => {
    const both = linesFile([
      { query: 'q', positive: 'p' },
      { a: 'x', b: 'y', score: 1 },
    ]);
    expect(await refusal('embed', both)).toBe(
      '--data: data.jsonl, line 2: expected pairs, as the lines before have them, got scored pairs. Keep one kind in a file.',
    );
    const labels = linesFile([{ text: 'q', labels: ['a'] }, good]);
    expect(await refusal('classify', labels)).toContain('line 2: expected several labels');
  });

  it('is refused where there are none, or it is a text', async () => {
    expect(await refusal('embed', linesFile([]))).toBe(
      '--data: data.jsonl has no examples in it. Give a file with a line for each.',
    );
    expect(await refusal('classify', linesFile(['text,label'], 'data.csv'))).toContain(
      'data.csv has no examples',
    );
    expect(await refusal('embed', linesFile(['call me'], 'data.txt'))).toContain(
      'data.txt is a text, but --task embed learns from examples',
    );
  });
});
