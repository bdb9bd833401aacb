// What --data names: files, folders, patterns, several of them, compressed ones, and weights.

import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { gzipSync } from 'node:zlib';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { DataBytes } from '../src/data/data-bytes.js';
import { fileFormat } from '../src/data/data-file.js';
import { absoluteData, dataNames, dataParts, filesOf } from '../src/data/data-parts.js';
import { DataSource } from '../src/data/data-source.js';
import { UsageError } from '../src/errors.js';
import { dataNameText, parseDataName } from '../src/hub/data-name.js';
import { configOf, openFlags } from './support/jsonl-data.js';
import { parseFlags } from './support/parse-flags.js';

/** A folder with these files, each of which holds its own name. */
function folderOf(...names: string[]): string {
  const folder = newFolder();
  for (const name of names) {
    mkdirSync(join(folder, name, '..'), { recursive: true });
    writeFileSync(join(folder, name), name);
  }
  return folder;
}

const namesOf = (given: string) => dataParts(given).map(({ name, share }) => [name, share]);

/** The files of all parts, without the folder. */
const filesIn = (folder: string, given: string) =>
  dataParts(given).flatMap((part) =>
    filesOf(part, '--data').map((file) => file!.slice(folder.length + 1)),
  );

describe('weights', () => {
  it('stand behind the last colon, and become shares', () => {
    expect(namesOf('a.jsonl:6,b/*.txt:2')).toEqual([
      ['a.jsonl', 0.75],
      ['b/*.txt', 0.25],
    ]);
    expect(namesOf('hf:org/name:train:.5,hf:org/name@main::test:1.5e0')).toEqual([
      ['hf:org/name:train', 0.25],
      ['hf:org/name@main::test', 0.75],
    ]);
  });

  it('say nothing of a single entry, and a number behind a name is then its config', () => {
    expect(namesOf('a.txt:0.7')).toEqual([['a.txt:0.7', 1]]);
    expect(dataNames('a.txt:0.7')).toEqual(['a.txt']);
    expect(dataNames('hf:org/name:2020')).toEqual(['hf:org/name:2020']);
  });

  it('are no part of a split whose name is a number', () => {
    const name = parseDataName('hf:org/name:own:2020', '--data');
    const text = dataNameText(name);
    expect(namesOf(`${text}:1,b:1`)[0]).toEqual([text, 0.5]);
    expect(dataNames(`${text},b`)[0]).toBe(text);
    expect(parseDataName(text, '--data')).toEqual(name);
  });

  it.each([
    ['a:0.5,b', /^--data: a has the weight 0.5, and b has none\. Give each entry a weight/],
    ['a:0.5,b:0', /^--data: expected a weight above 0, got 0 of b\. Leave the entry out/],
    ['a:0.5,b:1e999', /^--data: expected a weight above 0, got /],
    ['a,,b', /^--data: expected a path or a name between commas, got "a,,b"\. Leave out the comma/],
  ])('refuse what makes no mixture: %s', (given, says) => {
    expect(() => dataParts(given)).toThrow(UsageError);
    expect(() => dataParts(given)).toThrow(says);
  });
});

describe('a path that is there', () => {
  it('is that path, whatever commas, colons and stars are in its name', () => {
    const odd = ['a,b.txt', 'c:0.5', 'd*.txt', 'e[1],f:2.txt'];
    const folder = folderOf(...odd, 'dx.txt');
    for (const name of odd) {
      expect(filesIn(folder, join(folder, name))).toEqual([name]);
    }
    const all = odd.map((name) => join(folder, name));
    expect(filesIn(folder, all.join(','))).toEqual(odd);
    const weighted = all.map((path, i) => `${path}:${i + 1}`).join(',');
    expect(filesIn(folder, weighted)).toEqual(odd);
    expect(namesOf(weighted).map(([, share]) => share)).toEqual([0.1, 0.2, 0.3, 0.4]);
    expect(dataNames(absoluteData(weighted))).toEqual(all);
  });

  it('stays as it is where a folder above it has a comma in its name', () => {
    const folder = folderOf('x,y/a.txt', 'x,y/b.txt');
    const given = `${folder}/x,y/*.txt,${folder}/x,y/a.txt`;
    expect(dataNames(given)).toEqual(given.split(/,(?=\/)/));
    expect(filesIn(folder, given)).toEqual(['x,y/a.txt', 'x,y/b.txt']);
  });
});

describe('the files', () => {
  it('are those of known kinds below a folder, by their bytes, without hidden ones', () => {
    const known = [
      'B.txt',
      'Z/c.md',
      'a.jsonl',
      'a/b.csv.gz',
      'a/n/x.json.zst',
      '\u00e9.tsv',
      '\uffee.txt',
      '\u{1f40b}.parquet',
    ];
    const folder = folderOf(...known, '.h.txt', '.git/a.txt', 'a.png', 'a.parquet.gz', 'noend');
    symlinkSync(join(folder, 'a.jsonl'), join(folder, 'link.jsonl'));
    symlinkSync(folder, join(folder, 'circle'));
    symlinkSync(join(folder, 'nowhere'), join(folder, 'dead.txt'));
    expect(filesIn(folder, folder)).toEqual([
      ...known.slice(0, 5),
      'link.jsonl',
      ...known.slice(5),
    ]);
  });

  it('are all that match a pattern, and each file is read once', () => {
    const folder = folderOf('a1.txt', 'a2.log', 'b/a3.txt', 'b/c/a4.txt', '.a5.txt');
    const of = (...patterns: string[]) =>
      filesIn(folder, patterns.map((pattern) => join(folder, pattern)).join(','));
    expect(of('*')).toEqual(['a1.txt', 'a2.log']);
    expect(of('a?.[tl]*')).toEqual(['a1.txt', 'a2.log']);
    expect(of('*/*.txt')).toEqual(['b/a3.txt']);
    expect(of('**/*.txt')).toEqual(['a1.txt', 'b/a3.txt', 'b/c/a4.txt']);
    expect(of('b/**')).toEqual(['b/a3.txt', 'b/c/a4.txt']);
    expect(of('b/c/*', '**/*.txt', 'a1.txt')).toEqual(['b/c/a4.txt', 'a1.txt', 'b/a3.txt']);
  });

  it('may stand behind the flag one by one, as a shell leaves them', () => {
    const { data, seed } = parseFlags('--data a.txt b.txt:3 --seed 2'.split(' '), () => {});
    expect({ data, seed }).toEqual({ data: 'a.txt,b.txt:3', seed: 2 });
    expect(parseFlags('--data a b --data c --valid d e'.split(' '), () => {})).toMatchObject({
      ...{ data: 'c', valid: 'd,e' },
    });
    expect(absoluteData('a.txt:1,hf:org/b:2')).toBe(`${resolve('a.txt')}:1,hf:org/b:2`);
  });

  it.each([
    ['a folder without any', (folder: string) => folder, /the folder .* has none of the files/],
    [
      'a pattern that none matches',
      (folder: string) => join(folder, '*.md'),
      /no file matches .*\*\.md/,
    ],
    [
      'a file that is missing',
      (folder: string) => `${join(folder, 'x.png')},${join(folder, 'no.txt')}`,
      /no\.txt is not there/,
    ],
  ])('are refused where there are none: %s', async (_, given, says) => {
    const folder = folderOf('x.png');
    await expect(DataSource.open(given(folder), '--valid')).rejects.toThrow(UsageError);
    await expect(DataSource.open(given(folder), '--valid')).rejects.toThrow(says);
  });

  it('are of one kind, but for a mixture', async () => {
    const folder = folderOf('a.txt');
    writeFileSync(join(folder, 'b.jsonl'), '{"text": "b"}');
    await expect(configOf(`--data ${folder} --epochs 1`)).rejects.toThrow(
      /has texts \(.*a\.txt\) and documents \(.*b\.jsonl\), which are learnt in different ways\. Give files of one kind/,
    );
  });

  it('follow each other as one text', async () => {
    const folder = newFolder();
    writeFileSync(join(folder, '1.txt'), '\ufeffsome words, \u00e9');
    writeFileSync(join(folder, '2.md.gz'), gzipSync('\ufeffand more'));
    await using data = await openFlags(`--data ${folder} --seq 4 --batch 1 --valid-fraction 0.5`);
    expect(data.train.size).toMatchObject({ tokens: 11, files: 2 });
    expect(data.valid!.size).toMatchObject({ tokens: 11, files: 2 });
  });
});

describe('a compressed file', () => {
  const TEXT = 'He saw the whale. '.repeat(60);
  /** The text by `zstd -19`. */
  const ZSTD = Buffer.from('KLUv/WQ4A9UAAJBIZSBzYXcgdGhlIHdoYWxlLiABAEaof4YBVsPyXA==', 'base64');
  const written = (name: string, bytes: Buffer | string) => {
    const path = join(newFolder(), name);
    writeFileSync(path, bytes);
    return path;
  };
  const textOf = async (path: string) => {
    await using data = await DataBytes.open(path, '--data');
    const pieces: Buffer[] = [];
    for await (const piece of data.chunks()) {
      pieces.push(piece);
    }
    return Buffer.concat(pieces).toString();
  };

  it.each([
    ['gzip', gzipSync(TEXT)],
    ['zstd', ZSTD],
  ])(
    'has the bytes that are in it, also of several that were put together: %s',
    async (_, bytes) => {
      expect(await textOf(written('any', bytes))).toBe(TEXT);
      expect(await textOf(written('any', Buffer.concat([bytes, bytes])))).toBe(TEXT + TEXT);
    },
  );

  it('has the kind of what is in it, however far one has to look', async () => {
    const long = JSON.stringify({ text: Array.from({ length: 90_000 }, (_, i) => i).join() });
    const packed = gzipSync(`${long}\n${long}`);
    expect(packed.length).toBeGreaterThan(2 ** 17);
    expect(fileFormat(written('any', packed))).toBe('lines');
    expect(fileFormat(written('a.csv.gz', gzipSync('text\nb')))).toBe('csv');
    expect(fileFormat(written('a.txt.zst', ZSTD))).toBe('text');
    const source = await DataSource.open(written('a.csv.gz', gzipSync('text\nb\nc')), '--data');
    const found: [string, string][] = [];
    for await (const { text, place } of source.entries()) {
      found.push([text, place.slice(place.lastIndexOf('/') + 1)]);
    }
    expect(found).toEqual([
      ['{"text":"b"}', 'a.csv.gz, line 2'],
      ['{"text":"c"}', 'a.csv.gz, line 3'],
    ]);
  });

  it.each([
    [
      'cut off',
      'a.gz',
      gzipSync(TEXT).subarray(0, 30),
      /a\.gz is compressed \(gzip\), and can't be unpacked \(.*\)\. Get the file anew/,
    ],
    [
      'cut off',
      'a.zst',
      ZSTD.subarray(0, 30),
      /a\.zst is compressed \(zstd\), and can't be unpacked/,
    ],
    ['damaged', 'a.gz', Buffer.from(gzipSync(TEXT)).fill(0xff, 12, 20), /can't be unpacked/],
    [
      'an archive',
      'a.tar.gz',
      gzipSync(TEXT),
      /a\.tar\.gz is an archive \(tar\)\. Unpack it first/,
    ],
    ['of another kind inside', 'a.gz', gzipSync('%PDF-1.7 and more'), /is a document \(PDF\)/],
  ])('is refused in a sentence where it is %s: %s', async (_, name, bytes, says) => {
    const path = written(name, bytes);
    await expect(textOf(path)).rejects.toThrow(UsageError);
    await expect(textOf(path)).rejects.toThrow(says);
  });

  it('is refused where it is a table in Parquet, which is read from its end', async () => {
    const path = written('a.parquet.gz', gzipSync('PAR1\x15 and so on'));
    const source = await DataSource.open(path, '--data');
    await expect(source.entries().next()).rejects.toThrow(
      /a\.parquet\.gz is a compressed table \(gzip\).* Unpack it first/,
    );
  });
});
