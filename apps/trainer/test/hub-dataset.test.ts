// Data sets by their names on the Hub, which a server plays: which files are a split, that a run
// keeps to them, and what is said of names that mean none.

import { existsSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { snapshotDownload } from '@huggingface/hub';
import { parquetWriteBuffer } from 'hyparquet-writer';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { chooseSplit } from '../src/hub/choose-split.js';
import { parseDataName } from '../src/hub/data-name.js';
import { type DatasetOptions, datasetFiles, hubDataset } from '../src/hub/hub-dataset.js';
import { entriesOf } from './support/data-documents.js';
import { PlayedHub } from './support/hub-server.ts';
import { lettersDirectory } from './support/letters-tokenizer.js';
import { runCli } from './support/run-cli.js';

const REPO = 'ocean/chats';
const lines = (...texts: string[]) => texts.map((text) => JSON.stringify({ text })).join('\n');
const table = (...data: string[]) =>
  new Uint8Array(parquetWriteBuffer({ columnData: [{ name: 'text', type: 'STRING', data }] }));
const TRAIN = ['data/train-00000-of-00002.parquet', 'data/train-00001-of-00002.parquet'] as const;
const FILES = {
  'README.md': '---\nlicense: mit\n---\nChats.',
  [TRAIN[1]]: table('ef', 'gh'),
  [TRAIN[0]]: table('ab', 'cd', 'x'.repeat(3000)),
  'data/test-00000-of-00001.parquet': table('valid'),
};

let hub: PlayedHub;
let folder: string;
beforeEach(async () => {
  hub = await PlayedHub.open();
  folder = newFolder();
  // What has been downloaded is found again by the environment of the process.
  vi.stubEnv('HF_HOME', folder);
});
afterEach(async () => {
  vi.unstubAllEnvs();
  await hub[Symbol.asyncDispose]();
});

const publish = (files: Readonly<Record<string, string | Uint8Array>> = FILES) =>
  hub.push(`datasets/${REPO}`, { files });
const env = (more: NodeJS.ProcessEnv = {}) => ({
  HF_ENDPOINT: hub.endpoint,
  HF_HOME: folder,
  HF_HUB_OFFLINE: '',
  ...more,
});
/** Finds data; resolves to its name and the paths of its files in the snapshot. */
async function find(name: string, options: Partial<DatasetOptions> = {}) {
  const flag = options.flag ?? '--data';
  const own = { pauseMs: 5, env: env(), ...options, flag };
  const pinned = await hubDataset(parseDataName(name, flag), own);
  const [, commit] = /@([0-9a-f]{40}):/.exec(pinned) ?? [];
  const base = join(folder, 'hub', 'datasets--ocean--chats', 'snapshots', commit!);
  const files = datasetFiles(pinned, own.env);
  return { pinned, files, paths: files.map((file) => file.slice(base.length + 1)) };
}

describe('a name', () => {
  it.each([
    ['hf:a/b', { repo: 'a/b', revision: undefined, parts: [] }],
    ['hf:a/b@refs/convert/parquet', { repo: 'a/b', revision: 'refs/convert/parquet', parts: [] }],
    ['hf:a/b@v1:en:test', { repo: 'a/b', revision: 'v1', parts: ['en', 'test'] }],
    ['hf:a/b::test', { repo: 'a/b', revision: undefined, parts: ['', 'test'] }],
  ])('%s', (given, name) => {
    expect(parseDataName(given, '--data')).toEqual(name);
  });

  it.each(['hf:', 'hf:a', 'hf:/a/b', 'hf:a/b:c:d:e', 'hf:a/../b'])('%s is refused', (given) => {
    expect(() => parseDataName(given, '--valid')).toThrow(/^--valid: expected hf:org\/name\[/);
  });
});

/** The split that names choose of these files. */
const chosen = (paths: readonly string[], name: string, readme?: string) => {
  const { parts } = parseDataName(`hf:a/b${name}`, '--data');
  const choice = { parts, defaults: ['train'] };
  const found = chooseSplit({ paths, readme }, choice, { flag: '--data', repo: 'a/b' });
  return `${found.config}:${found.split} ${found.paths.join(' ')}`;
};

const CONFIGS = `---
configs:
- config_name: en
  data_files:
  - split: train
    path: "en/*.jsonl"
  - split: test
    path: ["en/deep/**", "./old-[0-9].jsonl"]
- config_name: de
  default: true
  data_dir: de
- config_name: all
  data_files: "**/*.jsonl"
- config_name: by-key
  data_files: {train: "de/train.j?onl", dev: old-1.jsonl}
---
`;
const LANGUAGES = [
  ...['de/train.jsonl', 'de/dev.jsonl', 'en/b.jsonl', 'en/a.jsonl'],
  ...['en/deep/er/c.jsonl', 'old-1.jsonl', 'old-10.jsonl'],
];

describe('the files of a split', () => {
  it.each<[string, readonly string[], string, string]>([
    [
      'names that say nothing',
      ['b.jsonl', 'a.jsonl', 'x.csv'],
      '',
      'default:train a.jsonl b.jsonl',
    ],
    ['words in names', ['my_train.json', 'dev-1.json'], '', 'default:train my_train.json'],
    ['synonyms', ['training.json', 'dev1.json'], ':validation', 'default:validation dev1.json'],
    [
      'no word inside of another',
      ['training.json', 'contest.json'],
      '',
      'default:train training.json',
    ],
    ['folders', ['train/0.jsonl', 'test/0.jsonl', 'a.jsonl'], ':test', 'default:test test/0.jsonl'],
    [
      'split of any name',
      ['data/sft-00000-of-00001.parquet'],
      ':sft',
      `default:sft data/sft-00000-of-00001.parquet`,
    ],
    [
      'the kind of most files',
      ['a.json', 'b.parquet', 'c.parquet'],
      '',
      'default:train b.parquet c.parquet',
    ],
    ['tables as text', ['test.csv', 'train.TSV', 'a.txt'], '', 'default:train train.TSV'],
    [
      'no files about data',
      ['dataset_infos.json', '.x/a.json', 'a.txt', 'LICENSE.txt'],
      '',
      'default:train a.txt',
    ],
    [
      'what the Hub converts',
      ['en/train/0000.parquet', 'de/train/0000.parquet', 'de/partial-test/0000.parquet'],
      ':de:test',
      'de:test de/partial-test/0000.parquet',
    ],
  ])('are found by %s', (_by, paths, name, split) => {
    expect(chosen(paths, name)).toBe(split);
  });

  it.each([
    ['', 'de:train de/train.jsonl'],
    [':validation', 'de:validation de/dev.jsonl'],
    [':en', 'en:train en/a.jsonl en/b.jsonl'],
    [':en:test', 'en:test en/deep/er/c.jsonl old-1.jsonl'],
    [':all:', `all:train ${LANGUAGES.toSorted().join(' ')}`],
    [':by-key', 'by-key:train de/train.jsonl'],
  ])('are those that the README has for "%s"', (name, split) => {
    expect(chosen(LANGUAGES, name, CONFIGS)).toBe(split);
  });

  it.each<[string, readonly string[], string, RegExp, string?]>([
    [
      'a split',
      ['test.json'],
      '',
      /a\/b \(config default\) has no split "train", but test\. Name one as hf:a\/b:default:test\.$/,
    ],
    [
      'a split or config',
      LANGUAGES,
      ':fr',
      /\(config de\) has no split "fr", but train, validation, and no config of that name: en, de, all, by-key\./,
      CONFIGS,
    ],
    [
      'a config',
      LANGUAGES,
      ':fr:train',
      /expects a config behind its name, one of en, de, .*, got "fr:train"\. Name it as hf:a\/b:en\./,
      CONFIGS,
    ],
    [
      'a default',
      ['x/train/0000.parquet', 'y/train/0000.parquet'],
      '',
      /expects a config behind its name, one of x, y, got none/,
    ],
    [
      'readable files',
      ['a.zip', 'b.zip', 'load.py'],
      '',
      /expected JSON lines, Parquet, CSV, TSV or text in a\/b, got files of other kinds: 2 \.zip, 1 \.py\. .*hf:a\/b@refs\/convert\/parquet/,
    ],
    [
      'a readable config',
      ['a.zip', 'b.json'],
      '',
      /got files of other kinds: 1 \.zip\./,
      '---\nconfigs:\n- data_files: a.zip\n---',
    ],
    ['files', [], '', /got no files/],
  ])('are refused without %s', (_what, paths, name, says, readme) => {
    expect(() => chosen(paths, name, readme)).toThrow(says);
  });
});

it('the files of a split, and no others, come once, in order of their names', async () => {
  const commit = publish();
  const found = await find(`hf:${REPO}`);
  expect(found.pinned).toBe(`hf:${REPO}@${commit}:default:train`);
  expect(found.paths).toEqual(TRAIN);
  expect(readFileSync(found.files[0]!)).toEqual(Buffer.from(FILES[TRAIN[0]]!));
  expect(existsSync(join(found.files[0]!, '..', 'test-00000-of-00001.parquet'))).toBe(false);
  const { bytesSent } = hub;
  hub.requests.length = 0;
  await find(`hf:${REPO}`);
  expect([hub.requests.length, hub.bytesSent]).toEqual([1, bytesSent]);
  await find(found.pinned);
  expect(hub.requests).toHaveLength(1);
});

it('tables in CSV are one after the other, each with a header', async () => {
  publish({ 'b.csv': 'more,text\n1,cd\n', 'a.csv': 'text;more\nab;2\n' });
  const { pinned } = await find(`hf:${REPO}`);
  const texts = (await entriesOf(pinned)).map(({ text }) => JSON.parse(text) as unknown);
  expect(texts).toEqual([
    { text: 'ab', more: '2' },
    { more: '1', text: 'cd' },
  ]);
});

it('--valid takes a split to evaluate on', async () => {
  publish();
  const { pinned } = await find(`hf:${REPO}`, { flag: '--valid' });
  expect(pinned).toMatch(/:default:test$/);
});

it('a split is whole in the cache, or not there, for a machine without the Hub', async () => {
  publish();
  const found = await find(`hf:${REPO}`);
  const notes: string[] = [];
  const away = { env: env({ HF_ENDPOINT: 'http://127.0.0.1:9' }) };
  const again = await find(`hf:${REPO}`, { ...away, onNote: (text) => notes.push(text) });
  expect(again.pinned).toBe(found.pinned);
  expect(notes.join()).toContain(`The dataset in the cache is used: ${REPO}@`);
  await expect(find(`hf:${REPO}:test`, away)).rejects.toMatchObject({ code: 'HUB_UNREACHABLE' });
  const offline = { env: env({ HF_HUB_OFFLINE: '1' }) };
  expect((await find(`hf:${REPO}`, offline)).paths).toEqual(TRAIN);
  rmSync(found.files[1]!);
  await expect(find(`hf:${REPO}`, offline)).rejects.toThrow(
    /^--data: ocean\/chats@main is not whole in the cache .*HF_HUB_OFFLINE forbids/,
  );
});

describe('a data set that another program has downloaded', () => {
  const left = async (files: Readonly<Record<string, string | Uint8Array>> = FILES) => {
    publish(files);
    vi.spyOn(console, 'debug').mockImplementation(() => {}); // the library tells what it downloads
    const cacheDir = join(folder, 'hub');
    const repo = { type: 'dataset', name: REPO } as const;
    await snapshotDownload({ repo, hubUrl: hub.endpoint, cacheDir });
    vi.restoreAllMocks();
    return join(cacheDir, 'datasets--ocean--chats');
  };
  const offline = () => ({ env: env({ HF_HUB_OFFLINE: '1' }) });

  it('is found without the Hub, by the files that are there', async () => {
    const path = await left();
    expect(existsSync(join(path, '.listings'))).toBe(false);
    const notes: string[] = [];
    const onNote = (text: string) => notes.push(text);
    const found = await find(`hf:${REPO}`, { ...offline(), onNote });
    expect(found.paths).toEqual(TRAIN);
    expect(notes).toEqual([
      expect.stringMatching(
        /^--data: another program has downloaded ocean\/chats@\w+, and what it left/,
      ),
    ]);
    const away = { env: env({ HF_ENDPOINT: 'http://127.0.0.1:9' }) };
    expect((await find(`hf:${REPO}:test`, away)).pinned).toMatch(/:test$/);
  });

  it('is not whole where a file is missing that the names of others count', async () => {
    const path = await left();
    const [commit] = readdirSync(join(path, 'snapshots'));
    rmSync(join(path, 'snapshots', commit!, TRAIN[1]));
    await expect(find(`hf:${REPO}`, offline())).rejects.toThrow(/is not whole in the cache/);
    await expect(find(`hf:${REPO}:dev`, offline())).rejects.toThrow(/is not whole in the cache/);
    // The Hub is asked where it can be.
    expect((await find(`hf:${REPO}@${commit}`)).paths).toEqual(TRAIN);
    expect(existsSync(join(path, 'snapshots', commit!, TRAIN[1]))).toBe(true);
  });
});

it.each<[string, string, RegExp]>([
  [
    'unknown',
    'hf:ocean/none',
    /^--data: http.* has no dataset ocean\/none \(401\)\. Look at the name/,
  ],
  [
    'gated',
    'hf:ocean/gated',
    /ocean\/gated is gated\. Accept its terms on .*\/datasets\/ocean\/gated,/,
  ],
  [
    'of no such revision',
    `hf:${REPO}@v9`,
    /has no revision "v9"\. .*\/datasets\/ocean\/chats\/tree\/main/,
  ],
])('a data set that is %s is refused', async (_is, name, says) => {
  publish();
  hub.push('datasets/ocean/gated', { files: FILES, isGated: true });
  await expect(find(name)).rejects.toThrow(says);
});

describe('a command', () => {
  const run = (line: string) => runCli(line.split(' '), { env: env() });
  const small = () => {
    const model = lettersDirectory();
    return `--model ${model} --device cpu --ranks 1 --transport memory --seq 16 --batch 2 --cache ${folder}/tokens`;
  };

  it('trains and evaluates on splits, and goes on with the same commit', async () => {
    const commit = publish();
    const out = join(folder, 'run');
    const line = `train ${small()} --data hf:${REPO} --valid hf:${REPO} --out ${out} --save-every 1`;
    const first = await run(`${line} --steps 1`);
    expect([first.code, first.err]).toEqual([0, '']);
    expect(first.out).toContain(`hf:${REPO}@${commit}:default:train: 3.0k tokens in 5 documents`);
    const config = () => readFileSync(join(out, 'config.yaml'), 'utf8');
    expect(config()).toContain(`data: hf:${REPO}@${commit}:default:train\n`);
    expect(config()).toContain(`valid: hf:${REPO}@${commit}:default:test\n`);

    publish({ 'train.jsonl': lines('moved'), 'test.jsonl': lines('moved') });
    const more = await run(`${line} --quiet --steps 2 --resume auto`);
    expect([more.code, more.err]).toEqual([0, '']);
    expect(config()).toContain(`data: hf:${REPO}@${commit}:default:train\n`);
    const own = await run(`eval --model ${out} --device cpu --seq 16 --data hf:${REPO}`);
    expect([own.code, own.err]).toEqual([0, '']);
    expect(own.out).toContain('targets    5 in rows of 16');
  });

  it('plans without the files', async () => {
    publish();
    const { code, err } = await run(`plan ${small()} --data hf:${REPO} --train-on-prompt`);
    expect([code, err]).toEqual([0, '']);
    expect(hub.bytesSent).toBe(FILES['README.md'].length);
  });

  it('names the file and the row of a mistake', async () => {
    publish({ 'a.jsonl': lines('a', 'b', 'c'), 'b.jsonl': `${lines('d')}\n{"label": 1}` });
    const { code, err } = await run(`train ${small()} --steps 1 --data hf:${REPO}`);
    expect(code).toBe(2);
    expect(err).toMatch(/^error: --data: .*snapshots.*b\.jsonl, line 2: expected one of/);
  });

  it('names the file and the row of a document that is all prompt', async () => {
    const asked = JSON.stringify({ messages: [{ role: 'user', content: 'Hi' }] });
    publish({ 'a.jsonl': lines('a', 'b'), 'b.jsonl': `${lines('d')}\n${asked}` });
    const { err } = await run(`train ${small()} --steps 1 --data hf:${REPO}`);
    expect(err).toMatch(/^error: --data: .*b\.jsonl, line 2: expected something to learn.*user/);
  });

  it('says that the Hub is needed', async () => {
    const away = env();
    await hub[Symbol.asyncDispose]();
    const { code, err } = await runCli(['train', '--data', 'hf:a/b'], { env: away });
    expect(code).toBe(1);
    expect(err).toMatch(
      /^error: --data: hf:a\/b is not whole in the cache, and the Hub can't be asked for it: http/,
    );
  });
});
