// Embedders and classifiers by their names on the Hub, with the files that lie beside their
// transformer, some of them in folders.

import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { scanCacheDir, snapshotDownload } from '@huggingface/hub';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { type HubOptions, hubModel } from '../src/hub/hub-model.ts';
import { parseHubName } from '../src/hub/hub-name.ts';
import { checkHeaders } from '../src/plan/check-headers.ts';
import {
  classifierFiles,
  type EncoderFiles,
  embedderFiles,
  encoderFiles,
} from './support/encoder-files.js';
import { PlayedHub } from './support/hub-server.ts';
import { runCli } from './support/run-cli.js';

const REPO = 'ocean/whale-embed';
const POOLING = '1_Pooling/config.json';
const FILES: EncoderFiles = {
  ...embedderFiles(),
  'special_tokens_map.json': '{}',
  'README.md': 'A whale.',
};

let hub: PlayedHub;
let folder: string;
beforeEach(async () => {
  hub = await PlayedHub.open();
  folder = mkdtempSync(join(tmpdir(), 'hub-encoder-'));
});
afterEach(async () => {
  vi.restoreAllMocks();
  await hub[Symbol.asyncDispose]();
  rmSync(folder, { recursive: true });
});

const envOf = () => ({
  HF_ENDPOINT: hub.endpoint,
  HF_HOME: join(folder, 'hf'),
  HF_HUB_OFFLINE: '',
});
const OFFLINE = { HF_HUB_OFFLINE: '1' };

const cache = () => join(folder, 'hf/hub');
const find = ({ env, ...options }: HubOptions = {}, name = REPO) =>
  hubModel(parseHubName(name)!, { pauseMs: 5, ...options, env: { ...envOf(), ...env } });
const run = (line: string, env: NodeJS.ProcessEnv = {}) =>
  runCli(line.split(' '), { env: { ...envOf(), ...env } });

it('has the files of an embedder, that of its pooling in its folder, once', async () => {
  hub.push(REPO, { files: FILES });
  const found = await find();
  for (const [name, content] of Object.entries(FILES)) {
    const path = join(found, name);
    expect(existsSync(path), name).toBe(name !== 'README.md');
    expect(name === 'README.md' || readFileSync(path).equals(Buffer.from(content))).toBe(true);
  }
  hub.requests.length = 0;
  expect(await find()).toBe(found);
  expect(hub.requests).toEqual([`GET /api/models/${REPO}/revision/main`]);
  expect(await find({ env: OFFLINE })).toBe(found);
  const { warnings } = await scanCacheDir(cache());
  expect(warnings).toEqual([]);
});

it('is not whole without the file of its pooling, and goes on there', async () => {
  const commit = hub.push(REPO, { files: FILES });
  const found = await find();
  rmSync(join(found, POOLING));
  await expect(find({ env: OFFLINE })).rejects.toThrow(/not whole in the cache/);
  hub.bytesSent = 0;
  await find({}, `${REPO}@${commit}`);
  expect(existsSync(join(found, POOLING))).toBe(true);
  expect(hub.bytesSent).toBe(0); // the content is there, by its hash
});

it('knows again what a repository lacks, in a folder too', async () => {
  const { [POOLING]: _, ...files } = FILES;
  hub.push(REPO, { files });
  const found = await find();
  expect(
    existsSync(join(cache(), 'models--ocean--whale-embed/.no_exist', found.slice(-40), POOLING)),
  ).toBe(true);
  hub.requests.length = 0;
  expect(await find()).toBe(found);
  expect(hub.requests).toEqual([`GET /api/models/${REPO}/revision/main`]);
  const { err } = await run(`gguf --model ${REPO} --out ${join(folder, 'x.gguf')}`, OFFLINE);
  expect(err).toMatch(/can't be used\. expected 1_Pooling\/config\.json, got no such file/);
});

it('writes nothing beside the cache, whatever modules.json names', async () => {
  for (const path of ['../../../../../out', '/tmp', '.', 'a/../../b']) {
    const modules = JSON.stringify([
      { idx: 0, name: '0', path: '', type: 'sentence_transformers.models.Transformer' },
      { idx: 1, name: '1', path, type: 'sentence_transformers.models.Pooling' },
    ]);
    hub.push(REPO, { files: { ...FILES, 'modules.json': modules } });
    await find();
    expect(existsSync(join(folder, 'out'))).toBe(false);
    const { code } = await run(`onnx --model ${REPO} --out ${join(folder, 'x')}`);
    expect([code, existsSync(join(folder, 'x'))]).toEqual([2, false]);
  }
});

it('becomes ONNX and GGUF by its name', async () => {
  hub.push(REPO, { files: FILES });
  const onnx = await run(`onnx --model ${REPO} --out ${join(folder, 'onnx')} --dtype q8`);
  expect([onnx.code, onnx.err]).toEqual([0, '']);
  expect(readFileSync(join(folder, 'onnx', POOLING), 'utf8')).toBe(FILES[POOLING]);
  const path = join(folder, 'whale.gguf');
  const gguf = await run(`gguf --model ${REPO} --out ${path}`);
  expect([gguf.code, gguf.err]).toEqual([0, '']);
  expect(gguf.out).toContain('pooling mean');
  expect(readFileSync(path).includes(Buffer.from(REPO))).toBe(true);
});

it('asks for the Hub where the cache of another program may lack modules.json', async () => {
  hub.push(REPO, { files: encoderFiles() });
  vi.spyOn(console, 'debug').mockImplementation(() => {}); // the library tells what it downloads
  await snapshotDownload({ repo: REPO, hubUrl: hub.endpoint, cacheDir: cache() });
  const out = join(folder, 'onnx');
  const { code, err } = await run(`onnx --model ${REPO} --out ${out}`, OFFLINE);
  expect(code).toBe(2);
  expect(err).toMatch(
    /^error: --model: whether ocean\/whale-embed@\w+ has a modules\.json, .* is not known in the cache\. Run the command once where the Hub can be reached\.\n$/,
  );
  await find();
  expect((await run(`onnx --model ${REPO} --out ${out}`, OFFLINE)).code).toBe(0);
});

it.each([
  ['an embedder', embedderFiles()],
  ['a classifier', classifierFiles(['calm', 'storm'])],
] as const)('the headers of %s are checked without its weights', async (_, files) => {
  hub.push(REPO, { files });
  await find({ needsWeights: false, checkHeaders });
  const weights = files['model.safetensors']!;
  const texts = Object.entries(files).filter(([name]) => name !== 'model.safetensors');
  const bytes = texts.reduce((sum, [, text]) => sum + Buffer.byteLength(text), 0);
  expect(hub.bytesSent).toBeLessThan(bytes + 20_000);
  expect(weights.length).toBeGreaterThan(100_000);
  const broken = Buffer.from(weights);
  broken.writeBigUInt64LE(2n ** 40n);
  hub.push(REPO, { files: { ...files, 'model.safetensors': broken } });
  await expect(find({ needsWeights: false, checkHeaders })).rejects.toThrow(
    /--model: ocean\/whale-embed@\w+ can't be used\. model\.safetensors: .* Nothing of its weights was downloaded/,
  );
});
