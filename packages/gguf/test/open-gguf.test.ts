// What is read is compared with what the format's own reader finds, or was written byte by byte.

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { GgufModelError, GgufUsageError, ggufFile, modelGguf } from '@shardweave/gguf';
import { openGguf, openGgufShards } from '@shardweave/gguf/read';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { bareModel } from './support/hub-models.ts';
import {
  f32,
  f64,
  filesOf,
  LIST,
  list,
  pair,
  type RawFile,
  rawGguf,
  sourceOf,
  text,
  u8,
  u16,
  u32,
  u64,
} from './support/raw-gguf.ts';
import { bytesOf, readGguf } from './support/written.ts';

const folder = newFolder();

/** A pair of every type of value. */
const PAIRS = [
  pair('u8', 0, ...u8(200)),
  pair('i8', 1, ...u8(200)),
  pair('u16', 2, ...u16(60_000)),
  pair('i16', 3, ...u16(60_000)),
  pair('u32', 4, ...u32(4e9)),
  pair('i32', 5, ...u32(4e9)),
  pair('f32', 6, ...f32(0.1)),
  pair('yes', 7, 1),
  pair('text', 8, ...text('caf\u00e9 \u{1f40b}')),
  pair('u64', 10, ...u64(2n ** 63n)),
  pair('i64', 11, ...u64(2n ** 63n)),
  pair('f64', 12, ...f64(0.1)),
  pair('texts', LIST, ...list(8, 3, ...text(''), ...text('\u00e4'), ...text('b'))),
  pair('bytes', LIST, ...list(0, 2, 1, 255)),
  pair('floats', LIST, ...list(6, 2, ...f32(1.5), ...f32(-2))),
  pair('longs', LIST, ...list(11, 1, ...u64(2n ** 64n - 1n))),
  pair('flags', LIST, ...list(7, 3, 1, 0, 1)),
  pair('none', LIST, ...list(5, 0)),
];
const TENSORS = [
  { name: 'first', sizes: [3, 2], offset: 0 },
  { name: 'half', sizes: [5], type: 1, offset: 32 },
];

describe('openGguf', () => {
  it.each([2, 3])('reads values of every type in version %d', async (version) => {
    const bytes = rawGguf({ version, pairs: PAIRS, tensors: TENSORS });
    const file = await openGguf(sourceOf(bytes));
    expect(file.version).toBe(version);
    const values = [...file.metadata].map(([key, { type, value }]) => [key, type, value]);
    expect(values).toEqual([
      ['u8', 'u8', 200],
      ['i8', 'i8', -56],
      ['u16', 'u16', 60_000],
      ['i16', 'i16', -5536],
      ['u32', 'u32', 4e9],
      ['i32', 'i32', 4e9 - 2 ** 32],
      ['f32', 'f32', Math.fround(0.1)],
      ['yes', 'bool', true],
      ['text', 'string', 'caf\u00e9 \u{1f40b}'],
      ['u64', 'u64', 2n ** 63n],
      ['i64', 'i64', -(2n ** 63n)],
      ['f64', 'f64', 0.1],
      ['texts', 'string[]', ['', '\u00e4', 'b']],
      ['bytes', 'u8[]', [1, 255]],
      ['floats', 'f32[]', [1.5, -2]],
      ['longs', 'i64[]', [-1n]],
      ['flags', 'bool[]', [true, false, true]],
      ['none', 'i32[]', []],
    ]);
  });

  it('finds what @huggingface/gguf finds in a model, and makes a list once', async () => {
    const bytes = await bytesOf(modelGguf(bareModel(512, 32), { type: 'q8_0', name: 'x' }));
    const path = join(folder, 'model.gguf');
    writeFileSync(path, bytes);
    const [file, judge] = [await openGguf(sourceOf(bytes)), await readGguf(path)];
    const { version, tensor_count, kv_count, ...values } = judge.metadata;
    const ours = [...file.metadata].map(([key, { value }]) => [key, value]);
    expect(Object.fromEntries(ours)).toEqual(values);
    const tensors = [...file.tensors.values()];
    expect(tensors.map(({ name, shape }) => [name, shape])).toEqual(
      judge.tensorInfos.map(({ name, shape }) => [name, shape.map(Number).toReversed()]),
    );
    expect(tensors.map(({ type }) => type === 'q8_0')).toEqual(
      judge.tensorInfos.map(({ dtype }) => dtype === 8),
    );
    const last = judge.tensorInfos.at(-1)!;
    const from = Number(judge.tensorDataOffset + last.offset);
    const stored = file.tensors.get(last.name)!;
    const all = await stored.read({ start: 0, byteLength: stored.byteLength });
    expect(all).toEqual(new Uint8Array(bytes.subarray(from, from + stored.byteLength)));
    const tokens = file.metadata.get('tokenizer.ggml.tokens')!;
    expect(tokens.value).toBe(tokens.value);
  });

  it('reads no more than the header, and then the bytes that are asked for', async () => {
    const source = sourceOf(rawGguf({ tensors: TENSORS, dataBytes: 2e5 }));
    const { tensors } = await openGguf(source);
    expect(source.log).toEqual([[0, 2 ** 16]]);
    const half = tensors.get('half')!;
    expect([half.type, half.shape, half.byteLength]).toEqual(['f16', [5], 10]);
    expect([...(await half.read({ start: 2, byteLength: 4 }))]).toEqual([34, 35, 36, 37]);
    expect(source.log).toHaveLength(2);
    await expect(half.read({ start: 8, byteLength: 3 })).rejects.toThrow(GgufUsageError);
    await expect(half.read({ start: -1, byteLength: 3 })).rejects.toThrow(/got 3 from -1 on/);
  });

  it('goes on reading where a header is longer than its first part', async () => {
    const value = Array.from({ length: 60_000 }, (_, i) => `token ${i}`);
    const file = ggufFile(new Map([['t', { type: 'string[]', value }]]), []);
    const source = sourceOf(await bytesOf(file));
    const { metadata } = await openGguf(source);
    expect((metadata.get('t')!.value as string[])[59_999]).toBe('token 59999');
    expect(source.log.map(([, byteLength]) => byteLength)).toEqual([
      2 ** 16,
      2 ** 18,
      2 ** 20,
      source.byteLength,
    ]);
  });

  it('places tensors by general.alignment', async () => {
    const pairs = [pair('general.alignment', 4, ...u32(128))];
    const tensors = [{ name: 'x', sizes: [4], offset: 128 }];
    const bytes = rawGguf({ pairs, tensors, alignment: 128, dataBytes: 144 });
    const x = (await openGguf(sourceOf(bytes))).tensors.get('x')!;
    expect([...(await x.read({ start: 0, byteLength: 2 }))]).toEqual([128, 129]);
  });

  const huge = 2n ** 60n;
  it.each<[string, RawFile, RegExp]>([
    ['another format', { magic: [...text('safe')].slice(8) }, /begins with 'GGUF', got 0x65666173/],
    ['a big-endian file', { version: 0x0300_0000 }, /little-endian file, got a big-endian one/],
    ['version 1', { version: 1 }, /version 2 or 3 of GGUF, got 1/],
    ['as many tensors as bytes', { numTensors: 2 ** 20 }, /at most 65536 tensors, got 1048576/],
    ['an absurd number of keys', { numKeys: huge }, /number of keys that a file can have/],
    [
      'more keys than there are',
      { numKeys: 1, dataBytes: 0 },
      /bytes of .* at byte \d+, got the end/,
    ],
    ['a key twice', { pairs: [PAIRS[0]!, PAIRS[0]!] }, /'u8' once, got it twice/],
    ['a tensor twice', { tensors: [TENSORS[0]!, { ...TENSORS[0]!, offset: 32 }] }, /'first' once/],
    ['an unknown type of value', { pairs: [pair('x', 13)] }, /type from 0 to 12, got 13/],
    [
      'a long list',
      { pairs: [pair('x', LIST, ...list(4, 2 ** 40))] },
      /4398046511104 bytes of 'x'/,
    ],
    ['a list of lists', { pairs: [pair('x', LIST, ...list(9, 1))] }, /list of lists/],
    ['a long text', { pairs: [pair('x', 8, ...u64(2 ** 40))] }, /1099511627776 bytes of 'x'/],
    [
      'many long texts',
      { pairs: [pair('x', LIST, ...list(8, 2 ** 50, ...text('y')))], dataBytes: 0 },
      /got the end/,
    ],
    ['no dimensions', { tensors: [{ name: 'x', sizes: [] }] }, /1 to 4 dimensions for 'x', got 0/],
    [
      'a size of 0',
      { tensors: [{ name: 'x', sizes: [0, 3] }] },
      /at least 1 for 'x', got \[3, 0\]/,
    ],
    [
      'a huge shape',
      { tensors: [{ name: 'x', sizes: [2 ** 40, 2 ** 40] }] },
      /sizes of at least 1/,
    ],
    ['q2_K', { tensors: [{ name: 'x', sizes: [256], type: 10 }] }, /q5_K, q6_K, got q2_K/],
    ['an unknown type', { tensors: [{ name: 'x', sizes: [256], type: 99 }] }, /got type 99/],
    [
      'part of a block',
      { tensors: [{ name: 'x', sizes: [48], type: 8 }] },
      /blocks of 32 \(q8_0\)/,
    ],
    ['an odd offset', { tensors: [{ name: 'x', sizes: [1], offset: 8 }] }, /multiple of 32/],
    [
      'a far offset',
      { tensors: [{ name: 'x', sizes: [1], offset: 128 }] },
      /got the end of the file/,
    ],
    ['a long tensor', { tensors: [{ name: 'x', sizes: [99] }] }, /'x' up to byte \d+, got the end/],
    ['shared bytes', { tensors: [TENSORS[0]!, { name: 'x', sizes: [1] }] }, /some of 'first'/],
    ['alignment 0', { pairs: [pair('general.alignment', 4, ...u32(0))] }, /power of two .* got 0/],
    ['alignment 24', { pairs: [pair('general.alignment', 4, ...u32(24))] }, /got 24 \(u32\)/],
    ['a text as alignment', { pairs: [pair('general.alignment', 8, ...text('x'))] }, /\(string\)/],
  ])('refuses %s', async (_, file, message) => {
    const error = await openGguf(sourceOf(rawGguf(file))).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(GgufModelError);
    expect((error as Error).message).toMatch(message);
  });

  it('says what is wrong wherever a file is cut', async () => {
    const whole = rawGguf({ pairs: PAIRS, tensors: TENSORS, dataBytes: 42 });
    await openGguf(sourceOf(whole));
    for (let length = 0; length < whole.byteLength; length++) {
      const error = await openGguf(sourceOf(whole.subarray(0, length))).catch((e: unknown) => e);
      expect(error, `${length}`).toBeInstanceOf(GgufModelError);
      expect((error as Error).message).toMatch(/cut off|end of the file/);
    }
  });

  it('gives a result or its own error whichever byte is another one', async () => {
    const whole = rawGguf({ pairs: PAIRS, tensors: TENSORS });
    let opened = 0;
    for (let at = 0; at < whole.byteLength - 64; at++) {
      for (const flip of [1, 0x80, 0xff]) {
        const bytes = whole.slice();
        bytes[at]! ^= flip;
        try {
          const { metadata, tensors } = await openGguf(sourceOf(bytes));
          opened +=
            [...metadata.values()].filter(({ value }) => value !== undefined).length > 0 ? 1 : 0;
          for (const { read, byteLength } of tensors.values()) {
            await read({ start: 0, byteLength });
          }
        } catch (error) {
          expect(error, `byte ${at} ^ ${flip}`).toBeInstanceOf(GgufModelError);
        }
      }
    }
    expect(opened).toBeGreaterThan(100); // A text may have any bytes.
  });
});

describe('openGgufShards', () => {
  const shard = (no: number, name: string, { count = 2, total = 2 } = {}) =>
    rawGguf({
      pairs: [
        pair('split.no', 2, ...u16(no)),
        pair('split.count', 2, ...u16(count)),
        pair('split.tensors.count', 5, ...u32(total)),
      ],
      tensors: [{ name, sizes: [2] }],
    });
  const names = ['m-00001-of-00002.gguf', 'm-00002-of-00002.gguf'] as const;

  it('has the tensors of all files, and the metadata of the first', async () => {
    const files = filesOf({ [names[0]]: shard(0, 'a'), [names[1]]: shard(1, 'b') });
    const { tensors, metadata } = await openGgufShards(files, names[0]);
    expect([...tensors.keys()]).toEqual(['a', 'b']);
    expect(metadata.get('split.no')!.value).toBe(0);
    const one = await openGgufShards(filesOf({ 'x.gguf': rawGguf({}) }), 'x.gguf');
    expect(one.tensors.size).toBe(0);
  });

  it.each<[string, Readonly<Record<string, Uint8Array>>, string, RegExp]>([
    ['another than the first', {}, names[1], /Name m-00001-of-00002\.gguf, which stands for all/],
    [
      'a missing file',
      { [names[0]]: shard(0, 'a') },
      names[0],
      /m-00002-of-00002\.gguf: .* got none/,
    ],
    ['one under another name', { 'x.gguf': shard(0, 'a') }, 'x.gguf', /says, 1, got one in 2/],
    [
      'files in another order',
      { [names[0]]: shard(0, 'a'), [names[1]]: shard(0, 'b') },
      names[0],
      /file 2 of 2/,
    ],
    [
      'a tensor in both',
      { [names[0]]: shard(0, 'a'), [names[1]]: shard(1, 'a') },
      names[0],
      /'a' once/,
    ],
    [
      'too few tensors',
      { [names[0]]: shard(0, 'a', { total: 3 }), [names[1]]: shard(1, 'b') },
      names[0],
      /expected 3 tensors in 2 files, got 2/,
    ],
    [
      'a damaged one',
      { [names[0]]: shard(0, 'a'), [names[1]]: Uint8Array.of(1) },
      names[0],
      /^m-00002-of-00002\.gguf: openGguf: .*cut off/,
    ],
  ])('refuses %s', async (_, files, name, message) => {
    const error = await openGgufShards(filesOf(files), name).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(GgufModelError);
    expect((error as Error).message).toMatch(message);
  });
});
