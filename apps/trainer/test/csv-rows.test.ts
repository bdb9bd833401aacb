// Tables in CSV and TSV are read as the same rows in JSON lines are, a row at a time, and what is
// no table is refused by the line that a person has to mend.

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it, onTestFinished, vi } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { DataBytes } from '../src/data/data-bytes.js';
import { DataSource } from '../src/data/data-source.js';
import { entriesOf, tokensOf } from './support/data-documents.js';
import { jsonlFile, openFlags } from './support/jsonl-data.js';

function csvFile(content: string | Uint8Array, name = 'table.csv'): string {
  const path = join(newFolder(), name);
  writeFileSync(path, content);
  return path;
}

/** The rows of a file, each behind the line on which it begins. */
async function rowsOf(path: string) {
  const entries = await entriesOf(path);
  return entries.map(({ number, text }) => [number, JSON.parse(text)] as const);
}

/** Lets files be read in pieces; resolves to the number of bytes that have been. */
function readInPieces(size: number): () => number {
  const whole = DataBytes.prototype.chunks;
  let done = 0;
  const spy = vi.spyOn(DataBytes.prototype, 'chunks');
  spy.mockImplementation(async function* (this: DataBytes) {
    for await (const chunk of whole.call(this)) {
      for (let start = 0; start < chunk.length; start += size) {
        const piece = chunk.subarray(start, start + size);
        done += piece.length;
        yield piece;
      }
    }
  });
  onTestFinished(() => spy.mockRestore());
  return () => done;
}

const NASTY = 'prompt,completion\r\n"a ""b"", c\r\nd",\n1,"2\n\n3"\r\n"",über';
const NASTY_ROWS = [
  [2, { prompt: 'a "b", c\r\nd', completion: '' }],
  [4, { prompt: '1', completion: '2\n\n3' }],
  [7, { prompt: '', completion: 'über' }],
];

it('fields in quotes have separators, line breaks and quotes, and each value is a text', async () => {
  const path = csvFile(NASTY);
  expect(await rowsOf(path)).toEqual(NASTY_ROWS);
  expect((await entriesOf(path))[1]!.place).toBe(`${path}, line 4`);
});

describe('the same table', () => {
  const rows = [
    [2, { text: 'a', label: '0.5' }],
    [3, { text: '', label: '1' }],
  ];
  it.each<[string, string, string?]>([
    ['with LF', 'text,label\na,0.5\n,1\n'],
    ['with CRLF', 'text,label\r\na,0.5\r\n,1\r\n'],
    ['without a last line break', 'text,label\na,0.5\n,1'],
    ['with empty lines in the end', 'text,label\na,0.5\n,1\n\n\r\n'],
    ['behind a byte order mark', '\ufefftext,label\na,0.5\n,1\n'],
    ['with semicolons', 'text;label\na;0.5\n;1\n'],
    ['with tabs', 'text\tlabel\na\t0.5\n\t1\n'],
    ['with names in quotes', '"text";"label"\na;0.5\n;1\n'],
    ['called .CSV', 'text,label\na,0.5\n,1\n', 'table.CSV'],
    ['called .tsv', 'text\tlabel\na\t0.5\n\t1\n', 'table.tsv'],
  ])('is read %s', async (_how, content, name) => {
    expect(await rowsOf(csvFile(content, name))).toEqual(rows);
  });
});

it('empty lines are left out where there are several columns', async () => {
  const found = await rowsOf(csvFile('text,label\n\na,0.5\n\r\n\n,1\n'));
  expect(found.map(([line]) => line)).toEqual([3, 6]);
});

it('a first line may tell the separator, as spreadsheets write it', async () => {
  const rows = [[3, { text: 'a;b', 'more, or less': 'c' }]];
  expect(await rowsOf(csvFile('sep=|\r\ntext|more, or less\r\na;b|c\r\n'))).toEqual(rows);
});

it.each([
  ['csv', '"a,b,c";d\n1;2\n', { 'a,b,c': '1', d: '2' }],
  ['tsv', 'a,b,c\td\n1\t2\n', { 'a,b,c': '1', d: '2' }],
])('a name in the header of a .%s may have other separators in it', async (ending, text, row) => {
  expect(await rowsOf(csvFile(text, `table.${ending}`))).toEqual([[2, row]]);
});

it.each([1, 3, 7])('a table that is read in pieces of %i bytes is the same', async (size) => {
  const path = csvFile(NASTY);
  readInPieces(size);
  expect(await rowsOf(path)).toEqual(NASTY_ROWS);
});

it('rows come before the rest of the file is read', async () => {
  const path = csvFile(`text\n${'whale\n'.repeat(10_000)}`);
  const read = readInPieces(100);
  const source = await DataSource.open(path, '--data');
  for await (const { text } of source.entries()) {
    expect(text).toBe('{"text":"whale"}');
    break;
  }
  expect(read()).toBe(100);
});

it('a table has the tokens of its rows in JSON lines', async () => {
  const table = csvFile('prompt,completion\nq,yes\n"r\ns",no\n');
  const lines = [
    { prompt: 'q', completion: 'yes' },
    { prompt: 'r\ns', completion: 'no' },
  ];
  const { all, lines: places } = await tokensOf(table);
  expect(all).toEqual((await tokensOf(jsonlFile(lines).file)).all);
  expect(places.slice(0, 2)).toEqual([2, 3]);
});

it('a run trains on one table and is evaluated on another', async () => {
  const { model } = jsonlFile([]);
  const data = csvFile('prompt;completion\nq;yes\nr;no\n');
  const valid = csvFile('text\tlabel\nwell\t1\n', 'valid.tsv');
  await using found = await openFlags(
    `--model ${model} --data ${data} --valid ${valid} --seq 16 --batch 1 --ranks 1 --cache ${newFolder()}`,
  );
  expect([found.train.size.documents, found.valid?.size.documents]).toEqual([2, 1]);
});

const quoting = /Put the field into quotes, and double each quote in it\.$/;
it.each<[string, string | Uint8Array, RegExp, RegExp?]>([
  ['a header with a name twice', 'text,b,text\n', /line 1: expected a .*got "text" twice\. Rename/],
  ['a header without a name', 'sep=,\ntext,\n', /line 2: .*got none for column 2\. Name it/],
  ['an empty header', '\n\ntext\n', /line 1: expected a header .*got none for column 1\./],
  [
    'a row of more fields',
    'text,b\n"\r\n",\na,b,c\n',
    /line 4: expected as many fields as the header has, 2, got 3\. Put a field with .* or mend/,
  ],
  ['a row of fewer fields', 'text,b\na,b\nc\n', /line 3: expected as many .*, 2, got 1\. /],
  ['an empty line', 'text\na\n\n\nb\n', /line 3: expected as many .*, 1, got an empty line\. /],
  [
    'a quote that never ends',
    'text,b\n"a\nb",\n"c,\nd\n',
    /line 4: expected a row, got a quote that never ends\. /,
    quoting,
  ],
  ['text behind a quote', 'text\n"a"b\n', /line 2: .*got text behind the quote that ends/, quoting],
  ['a quote in a bare field', 'text\n5" wide\n', /line 2: .*got a quote in a field/, quoting],
  [
    'text in Latin-1',
    Buffer.from('text\na\nüber\n', 'latin1'),
    /line 3: expected text in UTF-8, got other bytes\. Save the file as UTF-8/,
  ],
  ['a row without words', 'text\na\n""\n', /line 3: expected words in "text", got ""\./],
  ['another shape', 'label\n1\n', /line 2: expected one of .*got an object with "label"\. Rename/],
  ['a header alone', 'text\n', /table\.csv has no documents in it/],
  ['nothing', '', /table\.csv has no documents in it/],
])('%s is refused', async (_what, content, says, remedy = /\.$/) => {
  const refused = tokensOf(csvFile(content));
  await expect(refused).rejects.toThrow(says);
  await expect(refused).rejects.toThrow(/^--data: .*table\.csv/);
  await expect(refused).rejects.toThrow(remedy);
});

it('the file of --valid is refused by this flag', async () => {
  const source = await DataSource.open(csvFile('a,a\n'), '--valid');
  const first = source.entries().next();
  await expect(first).rejects.toThrow(/^--valid: .*table\.csv, line 1: /);
});
