// The command `embed` writes the vectors that the encoder makes of ids which the test looks up
// itself, a text at a time, and mines the negatives that loops over all pairs of texts find.

import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { PassThrough, Writable } from 'node:stream';
import { loadStateDict, readSafetensors } from '@shardweave/nn';
import { EmbeddingModel, Encoder, embedDocuments } from '@shardweave/nn/embedding';
import { Device } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { afterAll, describe, expect, it } from 'vitest';
import { SMALL } from '../../../packages/onnx/test/support/small-encoder.ts';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { writeLines } from '../src/embed/embed-texts.js';
import { hardest, similarityLimit } from '../src/embed/hard-negatives.js';
import { inputTexts } from '../src/embed/text-lines.js';
import { npyHeader } from '../src/embed/vector-file.js';
import { SignalError } from '../src/errors.js';
import { EmbeddingRows, eachQuery } from '../src/figures/embedding-rows.js';
import { Interrupt } from '../src/interrupt.js';
import {
  classifierFiles,
  embedderFiles,
  encoderFiles,
  writeFiles,
} from './support/encoder-files.js';
import { runCli } from './support/run-cli.js';
import { NO_MOUNT, openSmallDisk } from './support/small-disk.js';

const folder = newFolder();
let count = 0;
const written = (name: string, content: string | Uint8Array) => {
  const path = join(folder, `${++count}-${name}`);
  writeFileSync(path, content);
  return path;
};
const jsonLines = (values: readonly object[]) =>
  values.map((value) => `${JSON.stringify(value)}\n`).join('');

const PROMPTS = { query: 'interest ', document: 'money ' };
const FILES = embedderFiles({ prompts: PROMPTS });
const MODEL = writeFiles(join(folder, 'model'), FILES);
const WIDTH = SMALL.hidden_size;
/** The most tokens of a text, as the model's files say. */
const MOST = 24;

const LONG = 'some years ago never mind how long '.repeat(6).trim();
const TEXTS = ['call me ishmael', 'the watery part', LONG, 'how long', 'money in my purse'];

type Options = Parameters<typeof runCli>[1];
const run = (flags: readonly string[], options: Options = {}, model = MODEL) =>
  runCli(['embed', '--model', model, '--device', 'cpu', '--threads', '1', ...flags], options);

/** The vectors of lines of JSON that were printed. */
const vectorsOf = (text: string) =>
  text
    .trimEnd()
    .split('\n')
    .map((line) => (JSON.parse(line) as { readonly embedding: number[] }).embedding);

async function vectors(flags: readonly string[], options: Options = {}): Promise<number[][]> {
  const { code, out, err } = await run(['--quiet', ...flags], options);
  expect({ code, err }).toEqual({ code: 0, err: '' });
  return vectorsOf(out);
}

const device = new Device(createReferenceBackend());
afterAll(() => device.dispose());
let encoder: EmbeddingModel | undefined;

/** What the encoder makes of texts, each a row of its own, with the ids of their words. */
async function expectedOf(
  texts: readonly string[],
  { normalize = true } = {},
): Promise<Float32Array[]> {
  if (encoder?.normalize !== normalize) {
    const { tensors } = readSafetensors(FILES['model.safetensors'] as Uint8Array);
    const body = new Encoder(device, { ...SMALL, add_pooling_layer: false }).eval();
    const own = [...tensors].map(([name, tensor]) => [name.replace('bert.', ''), tensor] as const);
    await loadStateDict(body, new Map(own.filter(([name]) => !name.startsWith('pooler.'))));
    encoder = new EmbeddingModel(body, { pooling: 'mean', normalize }).eval();
  }
  const { vocab } = JSON.parse(String(FILES['tokenizer.json'])).model;
  const ids = texts.map((text) => [
    vocab['[CLS]'],
    ...text
      .split(' ')
      .map((word) => vocab[word])
      .slice(0, MOST - 2),
    vocab['[SEP]'],
  ]);
  expect(ids.flat()).not.toContain(undefined);
  const rows = (await device.noGrad(() =>
    device.scope(async () => (await embedDocuments(encoder!, ids)).toArray()),
  )) as Float32Array;
  return texts.map((_, i) => rows.slice(i * WIDTH, (i + 1) * WIDTH));
}

function expectClose(found: readonly ArrayLike<number>[], wanted: readonly ArrayLike<number>[]) {
  expect(found.map(({ length }) => length)).toEqual(wanted.map(({ length }) => length));
  const off = found.flatMap((row, i) =>
    Array.from(row, (value, j) => Math.abs(value - wanted[i]![j]!)),
  );
  expect(Math.max(...off)).toBeLessThan(2e-6);
}

describe('vectors', () => {
  it('are those of the encoder for lines of any length, in chunks, and told of at the end', async () => {
    const { code, out, err } = await run(['--chunk-size', '2'], { input: TEXTS.join('\n') });
    expect(code).toBe(0);
    expectClose(vectorsOf(out), await expectedOf(TEXTS));
    expect(out.split('\n')[0]).toMatch(/^\{"embedding":\[-?0\.\d{5,12},/);
    expect(err).toMatch(
      /^5 texts, [\d.]+ texts\/s\n1 text had more than 24 tokens and was cut there\.\n$/,
    );
  });

  it('are the same of a text, of JSON lines with other fields, and of a table', async () => {
    const wanted = await vectors([], { input: `${TEXTS.join('\r\n')}\r\n` });
    const rows = TEXTS.map((body, id) => ({ id, body, tags: ['a'], embedding: 'old' }));
    const files = [
      ['--data', written('a.txt', TEXTS.join('\n'))],
      [
        '--data',
        written('b.csv', `id,body\n${TEXTS.map((text) => `1,${text}\n`).join('')}`),
        'body',
      ],
      ['--data', written('c.jsonl', jsonLines(TEXTS.map((text) => ({ text }))))],
    ];
    for (const [flag, file, field] of files) {
      const flags = [flag!, file!, ...(field === undefined ? [] : ['--field', field])];
      expect(await vectors(flags)).toEqual(wanted);
    }
    const { out } = await run(['--field', 'body', '--quiet'], { input: jsonLines(rows) });
    expect(vectorsOf(out)).toEqual(wanted);
    expect(JSON.parse(out.split('\n')[1]!)).toEqual({ ...rows[1], embedding: wanted[1] });
    const sniffed = await vectors([], { input: jsonLines(TEXTS.map((text) => ({ text }))) });
    expect(sniffed).toEqual(wanted);
  });

  it('are those of a field by its other names and of each text in a list, of a folder without its README.md', async () => {
    const files = join(folder, 'faq');
    mkdirSync(files);
    writeFileSync(join(files, 'README.md'), 'How we collected this.\n');
    const lines = [{ answer: [TEXTS[0], TEXTS[1]], id: 1 }, { answer: TEXTS[3] }];
    writeFileSync(join(files, 'faq.jsonl'), jsonLines(lines));
    const out = join(folder, 'site/new/a.jsonl');
    const flags = ['--data', files, '--field', 'positive', '--out', out];
    const { code, err } = await run(flags);
    expect(code).toBe(0);
    expect(err).toMatch(
      /^warning: --data: \S+README\.md is a text beside files with fields, and skipped\.\n3 texts, /,
    );
    const text = readFileSync(out, 'utf8');
    expectClose(vectorsOf(text), await expectedOf([TEXTS[0]!, TEXTS[1]!, TEXTS[3]!]));
    const [, second] = text.split('\n');
    expect(JSON.parse(second!)).toMatchObject({ answer: TEXTS[1], id: 1 });
  });

  it('are a NumPy array in float32 behind a header that has the number of texts', async () => {
    const path = written('vectors.npy', 'an earlier file');
    const flags = ['--out', path, '--chunk-size', '2', '--quiet'];
    expect(await run(flags, { input: TEXTS.join('\n') })).toEqual({ code: 0, out: '', err: '' });
    const bytes = readFileSync(path);
    expect(bytes.subarray(0, 8).toString('latin1')).toBe('\x93NUMPY\x01\x00');
    const dataAt = 10 + bytes.readUInt16LE(8);
    expect(dataAt % 64).toBe(0);
    expect(bytes.toString('latin1', 10, dataAt)).toMatch(
      /^\{'descr': '<f4', 'fortran_order': False, 'shape': \(5, 48\), \} +\n$/,
    );
    const values = new Float32Array(
      bytes.buffer.slice(bytes.byteOffset + dataAt, bytes.byteOffset + bytes.length),
    );
    const lines = written('vectors.jsonl', '');
    await run(['--out', lines, '--quiet'], { input: TEXTS.join('\n') });
    // Nine digits are enough for each float32.
    const read = Float32Array.from(vectorsOf(readFileSync(lines, 'utf8')).flat());
    expectClose([values], [read]);
    expect(npyHeader(Number.MAX_SAFE_INTEGER, 99_999).length).toBe(128);
  });

  it.each([
    ['the name of one', 'query', PROMPTS.query],
    ['a text', 'my purse ', 'my purse '],
    ['nothing', '', ''],
  ])('begin with a prompt: %s', async (_, prompt, before) => {
    const found = await vectors(['--prompt', prompt], { input: 'how long\nmoney' });
    expectClose(found, await expectedOf([`${before}how long`, `${before}money`]));
  });

  it('have fewer dimensions, and length 1 again where the model normalizes', async () => {
    const flags = ['--dimensions', '5', '--quiet'];
    for (const normalize of [true, false]) {
      const files = embedderFiles({ normalize });
      const model = writeFiles(join(folder, `normalize-${normalize}`), files);
      const { out } = await run(flags, { input: TEXTS.join('\n') }, model);
      const wanted = (await expectedOf(TEXTS, { normalize })).map((row) => {
        const kept = [...row.subarray(0, 5)];
        return kept.map((value) => (normalize ? value / Math.hypot(...kept) : value));
      });
      expectClose(vectorsOf(out), wanted);
    }
  });

  it('are cut at --seq, and the pooling of a bare encoder is told', async () => {
    const model = writeFiles(join(folder, 'bare'), encoderFiles());
    const input = { input: TEXTS.join('\n') };
    const { code, err } = await run(['--seq', '4'], input, model);
    expect(code).toBe(0);
    expect(err).toMatch(
      /^warning: --model: \S+ has no modules\.json, .*; here it is the mean of all\.\n5 texts, .*\n4 texts had more than 4 tokens and were cut there\.\n$/,
    );
    const short = await vectors(['--seq', '4'], { input: TEXTS[2]! });
    expectClose(short, await expectedOf(['some years']));
  });

  it('come as the texts do, and end whole at Ctrl-C', async () => {
    const interrupt = new Interrupt({ exit: () => {} });
    const onOut = () => interrupt.ask(new SignalError('SIGINT'));
    const input = 'how long\n'.repeat(50);
    const flags = ['--chunk-size', '3'];
    const ended = await run(flags, { input, interrupt, onOut });
    expect(ended).toMatchObject({ code: 130, err: 'error: Ended by Ctrl-C.\n' });
    expect(vectorsOf(ended.out).length).toBe(3);

    const stop = new AbortController();
    const waiting = new PassThrough();
    const texts = inputTexts(waiting, { field: undefined, signal: stop.signal }).lines();
    waiting.write('how long\nnever');
    expect((await texts.next()).value).toMatchObject({ text: 'how long' });
    const next = texts.next();
    stop.abort(new SignalError('SIGINT'));
    await expect(next).rejects.toThrow(SignalError);
  });

  it('wait for a reader that is slow', async () => {
    const kept: (() => void)[] = [];
    const write = (_chunk: unknown, _encoding: unknown, done: () => void) => kept.push(done);
    const out = new Writable({ write, highWaterMark: 8 });
    let made = 0;
    const texts = async function* () {
      for (; made < 3; made++) {
        yield 'ten bytes\n';
      }
    };
    const end = writeLines(texts(), { path: undefined, out, signal: new AbortController().signal });
    for (let i = 0; i < 3; i++) {
      await new Promise(setImmediate);
      expect([kept.length, made]).toEqual([1, i]); // no other one is made while it is written
      kept.pop()!();
    }
    await end;
  });

  const refused: readonly [string, readonly string[], string, RegExp][] = [
    [
      'an empty line',
      [],
      'how\n\nlong\n',
      /^standard input, line 2: expected a text, got an empty line/,
    ],
    [
      'a blank line',
      [],
      'how\n  \n',
      /^standard input, line 2: expected a text, got an empty line/,
    ],
    [
      'no input',
      [],
      '',
      /^standard input has no texts in it\. Write one a line, or give --data FILE/,
    ],
    [
      'other lines',
      ['--field', 'x'],
      'how',
      /^standard input, line 1: expected a line of JSON, got how/,
    ],
    [
      'no such field',
      [],
      '{"body": "how", "id": 1}',
      /line 1: expected words in "text", got no such field, but "body", "id"\. Name one of them, such as --field body/,
    ],
    [
      'a list with no words',
      [],
      '{"text": ["how", ""]}',
      /line 1: expected words in "text", got ""/,
    ],
    ['an empty field', [], '{"text": " "}', /line 1: expected words in "text", got " "/],
    ['a missing file', ['--data', 'none.txt'], '', /^--data: none\.txt is not there\./],
    [
      'no prompt of that name',
      ['--prompt', 'quary'],
      'how',
      /^--prompt: expected the name of a prompt, got "quary", and the model has query, document\. Did you mean query\? To put/,
    ],
    [
      'too many dimensions',
      ['--dimensions', '49'],
      'how',
      /^--dimensions 49: the model's vectors have 48 numbers/,
    ],
    ['too many positions', ['--seq', '33'], 'how', /^--seq 33 is beyond the model's 32 positions/],
    [
      'no room for a text',
      ['--seq', '2'],
      'how',
      /^--seq 2: the tokenizer puts 2 tokens around a text/,
    ],
    [
      'another tokenizer',
      ['--tokenizer', 'byte'],
      'how',
      /^--tokenizer byte: a text has token 104, but the model's vocabulary ends at 63 \(standard input, line 1\)/,
    ],
    [
      'an --out of another kind',
      ['--out', 'a.bin'],
      'how',
      /^--out: expected a name that ends with \.npy or \.jsonl, which is its format, got a\.bin/,
    ],
    [
      'a directory that can not be made',
      ['--out', 'package.json/a.npy'],
      'how',
      /^--out: package\.json\/a\.npy can't be written \(not a directory/,
    ],
    [
      'negatives of nothing',
      ['--negatives', '3'],
      'how',
      /^--negatives: it is about --mine-negatives, which is not given/,
    ],
    [
      'two sources',
      ['--mine-negatives', 'a.jsonl', '--data', 'a'],
      '',
      /^--data: --mine-negatives reads pairs/,
    ],
    [
      'pairs of the Hub that are not here',
      ['--mine-negatives', 'hf:ocean/none'],
      '',
      /^--mine-negatives: ocean\/none@main is not whole in the cache/,
    ],
    [
      'an array of pairs',
      ['--mine-negatives', 'a.jsonl', '--out', 'a.npy'],
      '',
      /^--out: expected a name that ends with \.jsonl, got a\.npy/,
    ],
  ];
  it.each(refused)('are refused in a sentence: %s', async (_, flags, input, message) => {
    const { code, out, err } = await run(flags, { input });
    expect({ code, out }).toEqual({ code: 2, out: '' });
    expect(err).toMatch(/^error: .*\.\n$/);
    expect(err.slice('error: '.length)).toMatch(message);
  });

  it('are refused of a classifier, of fields of a text, and where a pooling leaves prompts out', async () => {
    const classifier = writeFiles(join(folder, 'classifier'), classifierFiles(['calm', 'storm']));
    const { code, err } = await run([], { input: 'how' }, classifier);
    expect(code).toBe(2);
    expect(err).toMatch(
      /^error: --model: expected an embedder, got \S+, a classifier \(calm, storm\)/,
    );
    const text = written('d.txt', 'how\n');
    expect(await run(['--data', text, '--field', 'x'])).toMatchObject({
      code: 2,
      err: expect.stringMatching(/^error: --field x: \S+ is a text, whose lines have no fields/),
    });
    const apart = writeFiles(join(folder, 'apart'), embedderFiles({ includePrompt: false }));
    const prompted = await run(['--prompt', 'a: '], { input: 'how' }, apart);
    expect(prompted.err).toMatch(/^error: --prompt: the pooling of \S+ leaves the tokens of a pro/);
  });

  it('leave nothing of a file that is not whole, and an earlier one as it was', async () => {
    const path = written('kept.npy', 'kept');
    const before = readdirSync(folder).length;
    const input = 'how\nlong\n\nnever\n';
    for (const out of [path, path.replace('.npy', '.jsonl')]) {
      const { code } = await run(['--out', out, '--chunk-size', '1'], { input });
      expect(code).toBe(2);
    }
    expect(readFileSync(path, 'utf8')).toBe('kept');
    expect(readdirSync(folder).length).toBe(before);
  });

  it('end with the bytes that are free where a disk is full', async (context) => {
    using disk = openSmallDisk(8 * 1024) ?? context.skip(NO_MOUNT);
    const out = join(disk.path, 'a.npy');
    const { code, err } = await run(['--out', out], { input: 'how\n'.repeat(60) });
    expect(code).toBe(1);
    expect(err).toMatch(/^error: \S+a\.npy finds no room, where .* are free \(no space left/);
    expect(readdirSync(disk.path)).toEqual([]);
  });
});

describe('mined negatives', () => {
  const PAIRS = [
    { id: 'a', query: 'call me', positive: 'call me ishmael' },
    { id: 'b', query: 'how long', positive: ['how long precisely', 'some years ago'] },
    { id: 'c', query: 'call me', positive: 'me ishmael' },
    { id: 'd', query: 'the sea', positive: 'the watery part', negatives: ['money in my purse'] },
    { id: 'e', query: 'my money', positive: 'money in my purse' },
    { id: 'f', query: 'a shore', positive: 'little or no money' },
    { id: 'g', query: 'sail', positive: 'sail about a little' },
  ].map((pair) => ({ ...pair, query: pair.query.replace('sea', 'shore') }));
  const file = written('pairs.jsonl', jsonLines(PAIRS));

  /** The negatives that loops in float64 over all pairs find. */
  async function wantedOf({ margin = 0.95, most = 5 } = {}): Promise<string[][]> {
    const documents = [...new Set(PAIRS.flatMap(({ positive }) => positive))];
    const rows = await expectedOf([
      ...PAIRS.map(({ query }) => `${PROMPTS.query}${query}`),
      ...documents.map((text) => `${PROMPTS.document}${text}`),
    ]);
    const cosine = (a: Float32Array, b: Float32Array) => {
      let sum = 0;
      a.forEach((value, i) => {
        sum += value * b[i]!;
      });
      return sum;
    };
    return PAIRS.map(({ query, positive, ...more }, line) => {
      const score = (text: string) =>
        cosine(rows[line]!, rows[PAIRS.length + documents.indexOf(text)]!);
      const answers = PAIRS.filter((other) => other.query === query).flatMap((o) => o.positive);
      const own = 'negatives' in more ? more.negatives! : [];
      const limits = [positive].flat().map((text) => {
        const similarity = score(text);
        return similarity > 0 ? similarity * margin : similarity * (2 - margin);
      });
      const found = documents
        .filter((text) => !answers.includes(text) && !own.includes(text))
        .filter((text) => score(text) <= Math.min(...limits))
        .sort((one, other) => score(other) - score(one));
      return [...own, ...found.slice(0, most)];
    });
  }

  it.each([
    [[], {}],
    [['--negatives', '2', '--margin', '0.8', '--chunk-size', '3'], { most: 2, margin: 0.8 }],
    [['--margin', '100'], { margin: 100 }],
  ])('are those that loops over all texts find, with %j', async (flags, options) => {
    const { code, out, err } = await run(['--mine-negatives', file, '--quiet', ...flags]);
    expect({ code, err }).toEqual({ code: 0, err: '' });
    const lines = out
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line));
    const wanted = await wantedOf(options);
    expect(new Set(wanted.map(({ length }) => length)).size).toBeGreaterThan(1);
    expect(lines).toEqual(PAIRS.map((pair, i) => ({ ...pair, negatives: wanted[i] })));
  });

  it('are written to a file, which says of which lines there are few', async () => {
    const out = written('hard.jsonl', '');
    const flags = ['--mine-negatives', file, '--out', out, '--margin', '0.001'];
    const { code, out: printed, err } = await run(flags);
    expect({ code, printed }).toEqual({ code: 0, printed: '' });
    expect(err).toMatch(
      /^14 texts, [\d.]+ texts\/s\n\d of 7 lines got fewer than 5 negatives, \d of them none: .*\n$/,
    );
    expect(readFileSync(out, 'utf8').trimEnd().split('\n').length).toBe(7);
  });

  it.each([
    ['texts', 'how long\n', /^--mine-negatives: \S+ is a text, and pairs are JSON lines/],
    [
      'scores',
      '{"a": "x", "b": "y", "score": 1}',
      /line 1: expected a query and its answer, got a/,
    ],
    ['no pairs', '{"text": "x"}', /line 1: expected \{"query", "positive", "negatives"\?\}/],
  ])('are refused for what holds no pairs: %s', async (_, content, message) => {
    const { code, err } = await run(['--mine-negatives', written('no', content)]);
    expect(code).toBe(2);
    expect(err.slice('error: '.length)).toMatch(message);
  });

  it('are the hardest below a limit, the first of equal ones, and never of NaN', () => {
    const scores = [0.5, 0.9, Number.NaN, 0.7, 0.7, 0.6, 0.7];
    const of = (limit: number, answers: number[] = []) =>
      hardest(scores, { count: 3, limit, answers: new Set(answers) });
    expect(of(0.8)).toEqual([3, 4, 6]);
    expect(of(0.8, [4])).toEqual([3, 6, 5]);
    expect(of(0.9)).toEqual([1, 3, 4]);
    expect(of(0.55)).toEqual([0]);
    expect(similarityLimit(0.8, 0.95)).toBeCloseTo(0.76, 12);
    expect(similarityLimit(-0.4, 0.95)).toBeCloseTo(-0.42, 12);
  });

  it('are chosen by scores that do not depend on how many documents a tensor holds', async () => {
    const make = (rows: number, width: number) =>
      new EmbeddingRows(
        Float32Array.from({ length: rows * width }, (_, i) => Math.sin(i)),
        width,
      );
    const compared = { queries: make(70, 3), documents: make(5, 3) };
    for (const most of [undefined, 8, 1]) {
      const found: number[][] = [];
      const use = (_query: number, scores: Float32Array) => found.push([...scores]);
      await eachQuery(device, { ...compared, most }, use);
      expect(found.length).toBe(70);
      const wanted = found.map((_, i) =>
        Array.from({ length: 5 }, (_, j) => {
          const [a, b] = [compared.queries.row(i), compared.documents.row(j)];
          return a[0]! * b[0]! + a[1]! * b[1]! + a[2]! * b[2]!;
        }),
      );
      expectClose(found, wanted);
    }
  });
});
