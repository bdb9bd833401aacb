// Tables in Parquet are read as the same rows in JSON lines are, without more of a file in memory
// than a part of it.

import { writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { parquetWriteBuffer } from 'hyparquet-writer';
import { describe, expect, it, onTestFinished, vi } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { DataBytes } from '../src/data/data-bytes.js';
import { entriesOf, tokensOf } from './support/data-documents.js';
import { jsonlFile } from './support/jsonl-data.js';

type Table = Omit<Parameters<typeof parquetWriteBuffer>[0], 'writer'>;

/** Writes a table to a new file; returns its path. */
function tableFile(table: Table, change = (bytes: Buffer) => bytes): string {
  const path = join(newFolder(), 'table.parquet');
  writeFileSync(path, change(Buffer.from(parquetWriteBuffer(table))));
  return path;
}

const texts = (...data: string[]): Table => ({
  columnData: [{ name: 'text', type: 'STRING', data }],
});

const OPTIONAL = 'OPTIONAL';
const TEXT = { type: 'BYTE_ARRAY', converted_type: 'UTF8', repetition_type: OPTIONAL } as const;
const CHATS = [
  ['q', 'yes'],
  ['r', 'no', 's', 'well'],
].map((said) => said.map((content, i) => ({ role: i % 2 === 0 ? 'user' : 'assistant', content })));
/** Conversations as `datasets` writes them, of which a row may lack a field that others have. */
const CHAT_TABLE: Table = {
  columnData: [
    { name: 'messages', data: CHATS },
    { name: 'system', data: [undefined, 'be'] },
    { name: 'score', data: [2n ** 40n, undefined] },
    { name: 'at', data: [new Date(0), undefined] },
  ],
  schema: [
    { name: 'root', num_children: 4 },
    { name: 'messages', repetition_type: OPTIONAL, num_children: 1, converted_type: 'LIST' },
    { name: 'list', repetition_type: 'REPEATED', num_children: 1 },
    { name: 'element', repetition_type: OPTIONAL, num_children: 2 },
    { name: 'role', ...TEXT },
    { name: 'content', ...TEXT },
    { name: 'system', ...TEXT },
    { name: 'score', type: 'INT64', repetition_type: OPTIONAL },
    { name: 'at', type: 'INT64', converted_type: 'TIMESTAMP_MILLIS', repetition_type: OPTIONAL },
  ],
};

it('a row is the JSON object that JSON lines have', async () => {
  const rows = await entriesOf(tableFile(CHAT_TABLE));
  expect(rows.map(({ text }) => JSON.parse(text))).toEqual([
    { messages: CHATS[0], system: null, score: 2 ** 40, at: '1970-01-01T00:00:00.000Z' },
    { messages: CHATS[1], system: 'be', score: null, at: null },
  ]);
});

it('a table has the tokens of its rows in JSON lines, in all row groups', async () => {
  const lines = CHATS.map((messages, i) => ({ messages, system: i === 0 ? null : 'be' }));
  const table = tableFile({ ...CHAT_TABLE, rowGroupSize: 1 });
  expect(await tokensOf(table)).toEqual(await tokensOf(jsonlFile(lines).file));
});

it('a table is known by its beginning, whatever its name', async () => {
  const path = tableFile(texts('a', 'b'));
  const other = join(newFolder(), 'table');
  writeFileSync(other, Buffer.from(parquetWriteBuffer(texts('a', 'b'))));
  expect(await tokensOf(other)).toEqual(await tokensOf(path));
});

it('compressed pages are unpacked', async () => {
  const table = texts('a'.repeat(1000), 'b');
  const compressors = { GZIP: (bytes: Uint8Array) => gzipSync(bytes) };
  const packed = tableFile({ ...table, codec: 'GZIP', compressors });
  expect(await tokensOf(packed)).toEqual(await tokensOf(tableFile(table)));
});

describe('a large row group', () => {
  const all = Array.from({ length: 6000 }, (_, i) => `${i} ${'whale '.repeat(200)}`);
  const large: Table = { ...texts(...all), codec: 'UNCOMPRESSED', rowGroupSize: all.length };

  it('is read once', async () => {
    const read = vi.spyOn(DataBytes.prototype, 'bytesAt');
    onTestFinished(() => read.mockRestore());
    const rows = await entriesOf(tableFile(large));
    expect(rows.map(({ text }) => (JSON.parse(text) as { text: string }).text)).toEqual(all);
    // The end of the file, which tells where columns are, and the column.
    expect(read).toHaveBeenCalledTimes(2);
  });

  it('is decoded part by part', async () => {
    const late = (bytes: Buffer) => bytes.fill(0xff, 6_000_000, 6_003_000);
    await expect(entriesOf(tableFile(large, late))).rejects.toThrow(
      /can't be read in rows 3001 to 6000/,
    );
  });
});

it('a table of texts is read without its other columns', async () => {
  const read = vi.spyOn(DataBytes.prototype, 'bytesAt');
  onTestFinished(() => read.mockRestore());
  const noise = Array.from({ length: 3000 }, (_, i) => `${(i * 2654435761) % 2 ** 32}`.repeat(40));
  const own = texts(...noise.map((_, i) => `${i}`));
  const more = { name: 'noise', type: 'STRING', data: noise } as const;
  const path = tableFile({ codec: 'UNCOMPRESSED', columnData: [more, ...own.columnData] });
  const rows = await entriesOf(path);
  expect(rows[2]).toMatchObject({ text: '{"text":"2"}', number: 3, place: `${path}, row 3` });
  // The end of the file, which tells where columns are, is read before.
  const lengths = read.mock.calls.slice(1).map(([start, end]) => end - start);
  expect(Math.max(...lengths)).toBeLessThan(50_000);
});

it.each<[string, string, RegExp]>([
  [
    'a row without words',
    tableFile(texts('a', 'b', '')),
    /^--data: .*table\.parquet, row 3: expected words in "text", got ""\./,
  ],
  [
    'columns of another shape',
    tableFile({ columnData: [{ name: 'label', data: [1, 2] }] }),
    /table\.parquet, row 1: expected one of .*got an object with "label"\. Rename the fields/,
  ],
  [
    'a file that was cut off',
    tableFile(texts('a', 'b'), (bytes) => bytes.subarray(0, -9)),
    /table\.parquet is no whole table in Parquet \(.*\)\. Get the file anew, or write its rows/,
  ],
  [
    'a page that is broken',
    tableFile(texts('abcabcabcabc', 'b'), (bytes) => bytes.fill(0xff, 4, 40)),
    /table\.parquet can't be read in rows 1 to 2 \(.*\)\. Get the file anew/,
  ],
  ['no rows', tableFile(texts()), /table\.parquet has no documents in it/],
])('%s is refused', async (_what, path, says) => {
  await expect(tokensOf(path)).rejects.toThrow(says);
  expect(basename(path)).toBe('table.parquet');
});
