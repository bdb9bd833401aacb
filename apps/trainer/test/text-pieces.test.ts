// A text is tokenized in pieces as it is read; its tokens are those of the whole text.

import { execFileSync } from 'node:child_process';
import {
  appendFileSync,
  closeSync,
  constants,
  openSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { setTimeout } from 'node:timers/promises';
import fc from 'fast-check';
import { beforeAll, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import {
  cutText,
  PIECE_CHARS,
  TextCutter,
  UncutTextError,
  usualPlaces,
} from '../src/data/cut-text.js';
import { DataBytes } from '../src/data/data-bytes.js';
import { dataParts } from '../src/data/data-parts.js';
import { otherFormat } from '../src/data/other-formats.js';
import { TokenFile } from '../src/data/token-file.js';
import { tokenize } from '../src/data/tokenize.js';
import { loadTokenizer, type Tokenizer } from '../src/data/tokenizer.js';
import { NotUtf8Error, utf8Chunks } from '../src/data/utf8-chunks.js';
import { UsageError } from '../src/errors.js';
import { hardTexts, pairVocabulary } from './support/hard-text.js';
import { lettersDirectory } from './support/letters-tokenizer.js';

/** Writes a byte-level tokenizer in which any two bytes of hard texts that meet are one token. */
function pairsDirectory(pre_tokenizer: object | null): string {
  const directory = lettersDirectory();
  const model = { type: 'BPE', ...pairVocabulary() };
  const none = { added_tokens: [], normalizer: { type: 'NFC' }, post_processor: null };
  const decoder = { type: 'ByteLevel' };
  const json = { version: '1.0', ...none, pre_tokenizer, decoder, model };
  writeFileSync(join(directory, 'tokenizer.json'), JSON.stringify(json));
  return directory;
}

const byteLevel = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true };
const split = (pattern: string) => ({
  type: 'Sequence',
  pretokenizers: [
    { type: 'Split', pattern: { Regex: pattern }, behavior: 'Isolated', invert: false },
    { ...byteLevel, use_regex: false },
  ],
});
const LLAMA_3 = split(
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
);
const GPT_4O = split(
  "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
);

describe.each([
  ["GPT-2's", () => loadTokenizer('gpt2')],
  ["a model's, of GPT-2's pattern", () => loadTokenizer('model', pairsDirectory(byteLevel))],
  ["a model's, of Llama 3's", () => loadTokenizer('model', pairsDirectory(LLAMA_3))],
  ["a model's, of GPT-4o's", () => loadTokenizer('model', pairsDirectory(GPT_4O))],
])('at every place where %s texts may be cut', (_, open) => {
  let tokenizer: Tokenizer;
  beforeAll(async () => {
    tokenizer = await open();
  });

  it('the tokens before and behind it are those of the whole', () => {
    let numPlaces = 0;
    const texts = hardTexts(process.env.SHARDWEAVE_LONG === '1' ? 4000 : 60, 3);
    const special = tokenizer.specialTexts.map((token) => `${texts[0]}a${token}b ${token}`);
    for (const text of [...texts, ...special]) {
      const whole = [...tokenizer.encode(text)];
      for (const place of tokenizer.cuts!) {
        for (const { index, 0: match } of text.matchAll(place)) {
          const at = index + match.length;
          const cut = [text.slice(0, at), text.slice(at)].flatMap((one) => [
            ...tokenizer.encode(one),
          ]);
          expect(cut, JSON.stringify([text.slice(0, at), text.slice(at)])).toEqual(whole);
          numPlaces++;
        }
      }
    }
    expect(numPlaces).toBeGreaterThan(30);
  });
});

describe('a tokenizer whose words are others is asked, and has no places', () => {
  it.each([
    ['none at all', { ...byteLevel, use_regex: false }],
    ['words that end with their space', split('\\p{L}+ ?|[^\\p{L}]')],
    ['words that go over a sign', split('[\\p{L}\\p{N}]+([.+-][\\p{L}\\p{N}]+)*|\\s+|.')],
    ['lines', split('[^\\n]+\\n*')],
    ['words that get a space before the first', { ...byteLevel, add_prefix_space: true }],
  ])('%s', async (_, pre_tokenizer) => {
    const tokenizer = await loadTokenizer('model', pairsDirectory(pre_tokenizer));
    expect(tokenizer.cuts).toBeUndefined();
  });
});

describe('a text that comes in parts', () => {
  const places = usualPlaces(['<|end|>']);
  const piecesOf = (text: string, sizes: readonly number[]) => {
    const cutter = new TextCutter(places);
    const pieces: string[] = [];
    for (let at = 0, i = 0; at < text.length; i++) {
      const size = sizes[i % sizes.length]!;
      pieces.push(...cutter.push(text.slice(at, at + size)));
      at += size;
    }
    return [...pieces, cutter.end()];
  };

  it('is cut alike, however it comes', () => {
    fc.assert(
      fc.property(
        fc.array(fc.constantFrom('word ', 'a\n', ';\r\n', '}\n', '1.5,', 'ab+/', ' \t'), {
          minLength: 20,
          maxLength: 60,
        }),
        fc.array(fc.integer({ min: 1000, max: 50_000 }), { minLength: 1, maxLength: 4 }),
        (units, sizes) => {
          const text = units.join('').repeat(300);
          const pieces = piecesOf(text, sizes);
          expect(pieces.join('') === text).toBe(true);
          expect(pieces).toEqual([...cutText(text, places)]);
          expect(Math.max(...pieces.map(({ length }) => length))).toBeLessThanOrEqual(
            2 * PIECE_CHARS,
          );
        },
      ),
      { numRuns: 12 },
    );
  });

  it.each([
    ['lines that end with CRLF', 'a line of words\r\n'],
    ['code', 'f(x);\n\t}\n'],
    ['numbers in columns', '12,34;56\n'],
    ['one line', 'and so on. '],
    ['one line without spaces', 'YWJjZGVm+Zzg5/'],
    ['Chinese', '\u6211\u80fd\u541e\u4e0b\u73bb\u7483\u800c\u4e0d\u4f24\u8eab\u4f53\u3002'],
    ['faces', '\u{1f600}\u{1f44d} '],
  ])('is cut in %s', (_, unit) => {
    const text = unit.repeat(Math.ceil((6 * PIECE_CHARS) / unit.length));
    const pieces = piecesOf(text, [2 ** 16]);
    expect(pieces.join('') === text).toBe(true);
    const most = PIECE_CHARS + unit.length;
    for (const { length } of pieces.slice(0, -1)) {
      expect(length).toBeLessThanOrEqual(most);
    }
    expect(pieces.length).toBeGreaterThanOrEqual(5);
  });

  it('is refused where one word does not end, with its place', () => {
    const cutter = new TextCutter(places);
    const [first] = cutter.push(`${'a '.repeat(PIECE_CHARS)}${'\u{1f600}'.repeat(PIECE_CHARS)}`);
    expect(first).toHaveLength(PIECE_CHARS + 1);
    expect(() => [...cutter.push('\u{1f600}'.repeat(2 * PIECE_CHARS))]).toThrow(UncutTextError);
    // A document is there whole anyway.
    expect([...cutText('a'.repeat(3 * PIECE_CHARS), places)]).toHaveLength(1);
  });
});

async function chunksOf(bytes: Buffer, size: number): Promise<Buffer> {
  async function* parts() {
    for (let at = 0; at < bytes.length; at += size) {
      yield bytes.subarray(at, at + size);
    }
  }
  const chunks: Buffer[] = [];
  for await (const chunk of utf8Chunks(parts())) {
    expect(new TextDecoder('utf-8', { fatal: true }).decode(chunk)).toBeTypeOf('string');
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

describe('bytes of a text', () => {
  it('come in whole characters, without the mark of their order', async () => {
    const text = 'a\u00e9\u6f22\u{1f600}\ufeff'.repeat(9);
    for (const size of [1, 2, 3, 4, 5, 7, 100]) {
      expect((await chunksOf(Buffer.from(`\ufeff${text}`), size)).toString()).toBe(text);
    }
  });

  it('bytes that are no text are refused with the place of the first', async () => {
    const good = 'a\u00e9\u6f22\u{1f600}'.repeat(20);
    await fc.assert(
      fc.asyncProperty(
        fc.nat(80),
        fc.constantFrom([0xff], [0xc3, 0x28], [0xed, 0xa0, 0x80], [0xf0, 0x9f, 0x98], [0x80]),
        fc.integer({ min: 1, max: 60 }),
        async (count, wrong, size) => {
          const before = Buffer.from([...good].slice(0, count).join(''));
          const bytes = Buffer.concat([before, Buffer.from(wrong), Buffer.from('(')]);
          const error = await chunksOf(bytes, size).catch((thrown: unknown) => thrown);
          expect(error).toBeInstanceOf(NotUtf8Error);
          expect((error as NotUtf8Error).offset).toBe(before.length);
        },
      ),
      { numRuns: 40 },
    );
  });
});

describe('the token file of a text', () => {
  const made = async (
    bytes: Buffer | string,
    tokenizer: 'byte' | 'gpt2',
    change: (file: string) => void = () => {},
  ) => {
    const directory = newFolder();
    const file = join(directory, 'text.txt');
    writeFileSync(file, bytes);
    const part = join(directory, 'part');
    const told: [number, number][] = [];
    const data = dataParts(file)[0]!;
    const job = { flag: '--data', data, tokenizer, tokenizerDirectory: undefined, part } as const;
    await tokenize(job, (done, total) => {
      if (told.push([done, total]) === 1) {
        change(file); // It is open, and nothing is read.
      }
    });
    const tokens = await TokenFile.open(part);
    const all = await tokens.read(0, tokens.index.tokens);
    await tokens.close();
    return { all, index: tokens.index, told };
  };

  it('has the tokens of the whole text, two bytes each, and says what was done in bytes', async () => {
    const text = `\ufeff${'It is 1851;\r\n\u00e9t\u00e9 <|endoftext|>x'.repeat(38_000)}`;
    const { all, index, told } = await made(text, 'gpt2');
    const expected = (await loadTokenizer('gpt2')).encode(text.slice(1));
    expect(Buffer.from(all.buffer).equals(Buffer.from(expected.buffer))).toBe(true);
    expect(index).toMatchObject({ kind: 'stream', tokenBytes: 2, largest: 50256 });
    const total = Buffer.byteLength(text);
    expect(index.targetBytes).toBe(total - 3 - 'It'.length);
    expect(told[0]).toEqual([0, total]);
    expect(told.at(-1)).toEqual([total, total]);
    expect(told.length).toBeGreaterThan(3);
  });

  it('has the bytes themselves, one byte each, whatever they are cut through', async () => {
    const text = '\u6f22\u{1f600}'.repeat(400_000);
    const { all, index } = await made(text, 'byte');
    expect(Buffer.from(all).equals(Buffer.from(text))).toBe(true);
    expect(index).toMatchObject({ tokenBytes: 1, largest: 0xf0 });
    expect(index.targetBytes).toBeUndefined(); // Its first token is a third of a character.
  });

  it('has the text as it was at the beginning, where a program appends to it', async () => {
    const { all, index } = await made('Call me Ishmael.', 'byte', (file) => {
      appendFileSync(file, ' Some years ago');
    });
    expect(Buffer.from(all).toString()).toBe('Call me Ishmael.');
    expect(index.origin.bytes).toBe(all.length);
  });

  it('is not made of a text that becomes shorter', async () => {
    const cut = made('a '.repeat(2 ** 20), 'byte', (file) => truncateSync(file, 5000));
    await expect(cut).rejects.toThrow(
      /^--data: .*text\.txt became shorter .*: it had 2097152 bytes, and ends after 5000\. Start/,
    );
  });

  it.each([
    ['bytes that are no text', Buffer.from('abc\xff', 'latin1'), /UTF-8: its byte 4 begins no/],
    ['one word', Buffer.alloc(50_000, 'a'), /has 32768 characters behind its first 0 without/],
  ])('is not made of %s', async (_, bytes, message) => {
    await expect(made(bytes, 'gpt2')).rejects.toThrow(UsageError);
    await expect(made(bytes, 'gpt2')).rejects.toThrow(message);
  });
});

it('a pipe that nobody writes to is refused, and not waited for', async ({ skip }) => {
  skip(process.platform === 'win32', 'Windows has no mkfifo');
  const pipe = join(newFolder(), 'pipe');
  execFileSync('mkfifo', [pipe]);
  const opened = DataBytes.open(pipe, '--data').then(
    () => 'opened',
    (error: UsageError) => error.message,
  );
  const waited = setTimeout(5000, 'waited', { ref: false });
  try {
    expect(await Promise.race([opened, waited])).toMatch(/^--data: expected a file, got .*pipe/);
  } finally {
    // This ends the wait of whoever opens it.
    closeSync(openSync(pipe, constants.O_RDWR | constants.O_NONBLOCK));
  }
});

describe('what is no text by its first bytes', () => {
  it.each<[string, number[]]>([
    ['compressed (xz)', [0xfd, 0x37, 0x7a, 0x58, 0x5a, 0]],
    ['compressed (bzip2)', [...Buffer.from('BZh91AY&SY')]],
    ['an archive (zip)', [0x50, 0x4b, 3, 4]],
    ['a table (Arrow)', [...Buffer.from('ARROW1\0\0')]],
    ['a document (PDF)', [...Buffer.from('%PDF-1.7')]],
    ['text in UTF-16', [...Buffer.from('\ufeffAh', 'utf16le')]],
    ['text in UTF-16', [0xfe, 0xff, 0x6f, 0x22]],
    ['text in UTF-16', [...Buffer.from('Ahab', 'utf16le')]],
    ['text in UTF-16', [0, 0x41, 0, 0x68, 0]],
  ])('%s', (is, head) => {
    expect(otherFormat(Uint8Array.from(head))?.is).toBe(`is ${is}`);
  });

  it.each([
    'PK is a town',
    'BZh9 Zh',
    'PAR1 of 3',
    '%PD',
    'a\0b',
    '\0\0\0\0',
    'Ahab',
    '\ufeffAhab',
    '',
  ])('a text may begin with %j', (text) => {
    expect(otherFormat(Buffer.from(text))).toBeUndefined();
  });
});
