// Pairs of answers become prompts with answers behind them, of which the answers count, whatever
// the shape is in which people keep them.

import { afterEach, describe, expect, it } from 'vitest';
import type { Examples, TaskExample } from '../src/data/example-data.js';
import { readPreference } from '../src/data/preference-shapes.js';
import { UsageError } from '../src/errors.js';
import { batchesOf, type OpenedExamples, openTask } from './support/example-files.ts';
import { jsonlFile } from './support/jsonl-data.ts';
import { LETTERS, type LettersOptions } from './support/letters-tokenizer.ts';

const open: OpenedExamples[] = [];

afterEach(async () => {
  await Promise.all(open.splice(0).map((data) => data[Symbol.asyncDispose]()));
});

const said = (role: string, content: string) => ({ role, content });
const ASK = said('user', 'hi');
const [GOOD, BAD] = [said('assistant', 'yes'), said('assistant', 'no')];

/** The texts of a pair, with | before the first token that counts. */
function textsOf({ texts }: TaskExample): string[] {
  const letter = (id: number) => (id === LETTERS.end.id ? '$' : String.fromCharCode(id));
  return texts.map(({ ids, tokenTypes }) => {
    const all = Array.from(ids, letter);
    const first = Array.from(tokenTypes).indexOf(1);
    expect(Array.from(tokenTypes).lastIndexOf(0)).toBe(first - 1);
    return `${all.slice(0, first).join('')}|${all.slice(first).join('')}`;
  });
}

async function opened(
  lines: readonly object[],
  flags = '--seq 31',
  options: LettersOptions = {},
): Promise<Examples> {
  const { file, model } = jsonlFile(lines, options);
  const data = await openTask(`--task orpo --model ${model} --data ${file} --batch 2 ${flags}`);
  open.push(data);
  return data.train;
}

const readAll = async (lines: readonly object[], flags?: string) => {
  const data = await opened(lines, flags);
  return (await data.at(lines.map((_, i) => i))).map(textsOf);
};

describe('a pair of answers', () => {
  it('is its prompt and each answer, which ends', async () => {
    expect(await readAll([{ prompt: 'ab ', chosen: 'cd', rejected: 'e' }])).toEqual([
      ['ab |cd$', 'ab |e$'],
    ]);
  });

  it.each([
    ['messages behind a prompt', { prompt: [ASK], chosen: [GOOD], rejected: [BAD] }],
    ['whole conversations', { chosen: [ASK, GOOD], rejected: [ASK, BAD] }],
    ['both', { prompt: [ASK], chosen: [ASK, GOOD], rejected: [ASK, BAD] }],
    ['a text that the messages quote', { prompt: 'hi', chosen: [ASK, GOOD], rejected: [ASK, BAD] }],
    ['a text before messages', { prompt: 'hi', chosen: [GOOD], rejected: [BAD] }],
    ['texts behind messages', { prompt: [ASK], chosen: 'yes', rejected: 'no' }],
    ['a question', { question: 'hi', chosen: 'yes', rejected: 'no' }],
    ['an instruction', { instruction: 'hi', input: '', chosen: 'yes', rejected: 'no' }],
    [
      'JSON text, as tables have it',
      { chosen: JSON.stringify([ASK, GOOD]), rejected: JSON.stringify([ASK, BAD]) },
    ],
    [
      'one that repeats the chosen answer',
      {
        prompt: 'hi',
        messages: [ASK, GOOD],
        chosen: [ASK, GOOD],
        rejected: [ASK, BAD],
        score_chosen: 8,
      },
    ],
  ])('is what the template writes: %s', async (_, line) => {
    expect(await readAll([line])).toEqual([['u:hi$\na:|yes$', 'u:hi$\na:|no$']]);
  });

  it('counts the last answers alone, behind a system message and earlier turns', async () => {
    const before = [ASK, GOOD, said('user', 'so')];
    const line = { system: 'S', chosen: [...before, BAD], rejected: [...before, GOOD] };
    expect(await readAll([line], '--seq 32')).toEqual([
      ['s:S$\nu:hi$\na:yes$\nu:so$\na:|no$', 's:S$\nu:hi$\na:yes$\nu:so$\na:|yes$'],
    ]);
  });

  it('loses the end of an answer that is longer than a row', async () => {
    const line = { prompt: 'abc', chosen: 'defghijk', rejected: 'xy' };
    const data = await opened([line], '--seq 5');
    expect((await data.at([0])).map(textsOf)).toEqual([['abc|def', 'abc|xy$']]);
    expect(data.size).toMatchObject({ cut: 1, documents: 1, tokens: 18 });
    expect(data.numTokens(0)).toBe(2 * (5 + 5)); // the batch has the pair twice
  });
});

it('pairs are dealt once an epoch, the same ones on any number of ranks', async () => {
  const lines = 'abcdefg'.split('').map((letter) => {
    return { prompt: letter, chosen: `${letter}1`, rejected: `${letter}22` };
  });
  const stepOf = async (ranks: number, more = '') => {
    const data = await opened(lines, `--seq 8 --batch 7 --ranks ${ranks}${more}`);
    expect(await data.numTargets(0)).toBe(7);
    const batches = (await batchesOf(data, 0, ranks)).flat();
    return batches.flatMap(({ examples }) => examples.map(textsOf));
  };
  const [one, ...others] = [await stepOf(1), await stepOf(3), await stepOf(2, ' --grad-accum 2')];
  expect(new Set(one!.map(([text]) => text)).size).toBe(7);
  for (const each of others) {
    expect(each).toEqual(one);
  }
});

describe('refuses', () => {
  it.each([
    [
      { prompt: 'a', chosen: 'b' },
      'expected {"prompt", "chosen", "rejected"}, of texts or of messages [{"role", "content"}], got an object with "prompt", "chosen". Rename the fields.',
    ],
    [{ chosen: 'b', rejected: 'c' }, 'got an object with "chosen", "rejected".'],
    [
      { prompt: 'a', chosen: 'b', rejected: 'b' },
      'got the same one as "chosen" and "rejected". Leave the line out',
    ],
    [{ chosen: [ASK, GOOD], rejected: [ASK, GOOD] }, 'got the same one as'],
    [
      { prompt: 'a', chosen: [GOOD], rejected: 'c' },
      'two texts or two lists of messages, got one of each',
    ],
    [
      { chosen: [GOOD], rejected: [BAD] },
      'expected "prompt", or messages with which "chosen" and "rejected" both begin, got answers alone.',
    ],
    [
      { chosen: [ASK, GOOD, ASK, GOOD], rejected: [ASK, BAD] },
      'in "chosen" after what both answers share, got assistant, user, assistant. End both behind',
    ],
    [
      { chosen: [ASK, GOOD], rejected: [ASK] },
      'in "rejected" after what both answers share, got none.',
    ],
    [
      { chosen: [ASK, GOOD], rejected: [ASK, said('user', 'x')] },
      'in "rejected" after what both answers share, got user.',
    ],
    [
      { prompt: 'other', chosen: [ASK, GOOD], rejected: [ASK, BAD] },
      'expected "prompt" to be one of the messages with which both answers begin, got "other".',
    ],
  ])('%j', (line, says) => {
    expect(() => readPreference(line)).toThrow(UsageError);
    expect(() => readPreference(line)).toThrow(says);
  });

  it('a prompt that fills a row, tokens that the model lacks and data without a pair', async () => {
    const long = [
      { prompt: 'a', chosen: 'b', rejected: 'c' },
      { prompt: 'abcdef', chosen: 'b', rejected: 'c' },
    ];
    await expect(opened(long, '--seq 5')).rejects.toThrow(
      /^--data: .*data.jsonl, line 2: the prompt has 6 tokens, and a row of --seq 5 has no room for an answer. Give a longer --seq, or leave the line out.$/,
    );
    await expect(opened(long, '--tokenizer gpt2')).rejects.toThrow(
      "but the model's vocabulary ends at 259",
    );
    await expect(opened([])).rejects.toThrow('data.jsonl');
    await expect(opened([{ prompt: '', chosen: 'b', rejected: 'c' }])).rejects.toThrow(
      'got an object with "chosen", "rejected"',
    );
  });
});
