// A model by its name: found on a server that plays the Hub, and kept in the cache that Hugging
// Face's own programs share.

import { randomBytes } from 'node:crypto';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { hostname, tmpdir } from 'node:os';
import { join } from 'node:path';
import { scanCacheDir, snapshotDownload } from '@huggingface/hub';
import { lockDirectory, nodeFiles } from '@shardweave/shard-store/node';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { CachedRepo } from '../src/hub/hub-cache.ts';
import { type HubOptions, hubModel } from '../src/hub/hub-model.ts';
import { hubNameOf, parseHubName } from '../src/hub/hub-name.ts';
import { findModelDirectory } from '../src/model/model-directory.ts';
import { PlayedHub } from './support/hub-server.ts';

const REPO = 'ocean/whale';
const WEIGHTS = randomBytes(100_000);
const FILES = {
  'config.json': '{"model_type":"gpt2"}',
  'tokenizer.json': `{"version":"1.0","pad":"${'x'.repeat(2000)}"}`,
  'model.safetensors': WEIGHTS,
  'pytorch_model.bin': randomBytes(5000),
  'README.md': 'A whale.',
};

let hub: PlayedHub;
let folder: string;
beforeEach(async () => {
  hub = await PlayedHub.open();
  folder = mkdtempSync(join(tmpdir(), 'hub-'));
});
afterEach(async () => {
  vi.restoreAllMocks();
  await hub[Symbol.asyncDispose]();
  rmSync(folder, { recursive: true });
});

function find(name: string, options: HubOptions = {}) {
  const env = { HF_ENDPOINT: hub.endpoint, HF_HOME: folder, ...options.env };
  return hubModel(parseHubName(name)!, { pauseMs: 5, ...options, env });
}

const cache = () => join(folder, 'hub');

describe('a name', () => {
  it.each<[string, ReturnType<typeof parseHubName>]>([
    ['Qwen/Qwen3-0.6B', { repo: 'Qwen/Qwen3-0.6B', revision: undefined }],
    ['a/b@refs/pr/7', { repo: 'a/b', revision: 'refs/pr/7' }],
    ['./a/b', undefined],
    ['../a/b', undefined],
    ['/a/b', undefined],
    ['a/b/c', undefined],
    ['a', undefined],
    ['a/b.gguf', undefined],
    ['a/b.mjs', undefined],
    ['a/b@../../c', undefined],
  ])('%s', (given, name) => {
    expect(parseHubName(given)).toEqual(name);
  });
});

it('has the files that a command needs, and no others, once', async () => {
  const commit = hub.push(REPO, { files: FILES });
  const seen: string[] = [];
  const found = await find(REPO, {
    onBytes: (name, done, total) => seen.push(`${name} ${done}/${total}`),
  });
  expect(found).toBe(join(cache(), 'models--ocean--whale', 'snapshots', commit));
  expect(readFileSync(join(found, 'model.safetensors')).equals(WEIGHTS)).toBe(true);
  expect(existsSync(join(found, 'pytorch_model.bin'))).toBe(false);
  expect(seen.at(-1)).toBe(`${REPO} 100000/100000`);
  const { bytesSent } = hub;
  await find(REPO);
  expect(hub.bytesSent).toBe(bytesSent);
});

it('leaves weights where they are not needed', async () => {
  hub.push(REPO, { files: FILES });
  const found = await find(REPO, { needsWeights: false });
  expect(existsSync(join(found, 'config.json'))).toBe(true);
  expect(hub.bytesSent).toBeLessThan(3000);
  expect(findModelDirectory(found)).toEqual({ path: found, hasWeights: true });
});

it('knows again that a model has no weights', async () => {
  const { 'config.json': config } = FILES;
  hub.push(REPO, { files: { 'config.json': config } });
  const found = await find(REPO);
  expect(findModelDirectory(found)).toEqual({ path: found, hasWeights: false });
  hub.requests.length = 0;
  expect(await find(REPO)).toBe(found);
  expect(hub.requests).toEqual([`GET /api/models/${REPO}/revision/main`]);
});

it.each([false, true])('hands out what is asked of weights, ranges or not: %s', async (isWhole) => {
  hub.push(REPO, { files: FILES });
  hub.ignoresRanges = isWhole;
  const got = new Uint8Array(50);
  let length = 0;
  const checkHeaders: HubOptions['checkHeaders'] = async (_, files) => {
    const source = await files.open('model.safetensors');
    length = source!.byteLength;
    await source!.read(got, { offset: 70_010 });
    expect(await files.open('model-00001-of-00002.safetensors')).toBeUndefined();
  };
  await find(REPO, { needsWeights: false, checkHeaders });
  expect(length).toBe(100_000);
  expect(Buffer.from(got)).toEqual(WEIGHTS.subarray(70_010, 70_060));
  if (!isWhole) {
    expect(hub.bytesSent).toBeLessThan(3000);
  }
});

it('names an index in the cache that nobody can read', async () => {
  const commit = hub.push(REPO, { files: FILES });
  const found = await find(REPO);
  rmSync(join(found, 'model.safetensors'));
  writeFileSync(join(found, 'model.safetensors.index.json'), '{"weight_map":');
  await expect(find(`${REPO}@${commit}`)).rejects.toThrow(
    /index\.json: expected JSON with the files of a model's weights .* Remove that file/,
  );
});

it('reads a cache that another user writes, and says what to do where a model is missing', async () => {
  const old = hub.push(REPO, { files: FILES });
  const found = await find(REPO);
  hub.push(REPO, { files: { ...FILES, 'config.json': '{}' } });
  const denied = Object.assign(new Error('EACCES'), {
    code: 'EACCES',
    errno: -13,
    syscall: 'open',
  });
  const writing = vi.spyOn(CachedRepo.prototype, 'setCommit').mockImplementation(() => {
    throw denied;
  });
  await expect(find(REPO)).rejects.toThrow(
    /--model: the model is not whole in the cache .* can't be written \(permission denied\)\. Set HF_HOME/,
  );
  await expect(find(`${REPO}@${old}`)).resolves.toBe(found);
  writing.mockRestore();
  const moved = await find(REPO);
  vi.spyOn(CachedRepo.prototype, 'setCommit').mockImplementation(() => {
    throw denied;
  });
  rmSync(join(cache(), 'models--ocean--whale', 'refs'), { recursive: true });
  await expect(find(REPO)).resolves.toBe(moved);
});

it('downloads again what the cache has in another size than the Hub lists', async () => {
  const commit = hub.push(REPO, { files: FILES });
  const weights = join(await find(REPO), 'model.safetensors');
  const notes: string[] = [];
  const onNote = (text: string) => notes.push(text);
  for (const name of [REPO, `${REPO}@${commit}`]) {
    truncateSync(weights, 777);
    await expect(find(name, { env: { HF_HUB_OFFLINE: '1' } })).rejects.toThrow(/is not whole/);
    await find(name, { onNote });
    expect(readFileSync(weights).equals(WEIGHTS)).toBe(true);
  }
  expect(notes[0]).toBe(
    `${REPO}: expected 100000 bytes of model.safetensors in the cache, got 777. They are downloaded again.`,
  );
  vi.spyOn(console, 'debug').mockImplementation(() => {}); // the library tells what it downloads
  rmSync(cache(), { recursive: true });
  await snapshotDownload({ repo: REPO, hubUrl: hub.endpoint, cacheDir: cache() });
  truncateSync(weights, 777);
  await find(REPO, { onNote });
  expect(readFileSync(weights).equals(WEIGHTS)).toBe(true);
});

it('says that a cache has no place, and of no other missing file that it is the cache', async () => {
  hub.push(REPO, { files: FILES });
  const disk = join(folder, 'disk');
  symlinkSync(join(folder, 'unmounted'), disk);
  await expect(find(REPO, { env: { HF_HOME: join(disk, 'hf') } })).rejects.toThrow(
    /not whole in the cache .*disk\/hf\/hub, which can't be written \(no such file or directory\)/,
  );
  const missing = Object.assign(new Error('ENOENT'), { code: 'ENOENT' });
  vi.spyOn(CachedRepo.prototype, 'setCommit').mockImplementation(() => {
    throw missing;
  });
  await expect(find(REPO)).rejects.toBe(missing);
});

it('reads what other programs have downloaded where nothing more can be noted', async () => {
  hub.push(REPO, { files: FILES });
  vi.spyOn(console, 'debug').mockImplementation(() => {}); // the library tells what it downloads
  await snapshotDownload({ repo: REPO, hubUrl: hub.endpoint, cacheDir: cache() });
  vi.spyOn(CachedRepo.prototype, 'setListing').mockImplementation(() => {
    throw Object.assign(new Error('EACCES'), { code: 'EACCES' });
  });
  expect(existsSync(join(await find(REPO), 'model.safetensors'))).toBe(true);
});

it('takes the shards that an index names', async () => {
  const index = { weight_map: { a: 'model-1.safetensors', b: 'model-2.safetensors' } };
  hub.push(REPO, {
    files: {
      'config.json': '{}',
      'model.safetensors.index.json': JSON.stringify(index),
      'model-1.safetensors': WEIGHTS.subarray(0, 9000),
      'model-2.safetensors': WEIGHTS.subarray(9000, 20_000),
      'model-3.safetensors': WEIGHTS,
    },
  });
  const path = await find(REPO);
  expect(readFileSync(join(path, 'model-2.safetensors'))).toHaveLength(11_000);
  expect(existsSync(join(path, 'model-3.safetensors'))).toBe(false);
});

it('goes on behind what broken connections left, and sends nothing twice', async () => {
  hub.push(REPO, { files: { 'config.json': '{}', 'model.safetensors': WEIGHTS } });
  hub.breaks.push(...Array.from({ length: 20 }, (_, i) => 1 + ((i * 7919) % 4000)));
  const path = await find(REPO);
  expect(readFileSync(join(path, 'model.safetensors')).equals(WEIGHTS)).toBe(true);
  // What was sent when a connection broke may not all have come.
  expect(hub.bytesSent).toBeGreaterThanOrEqual(WEIGHTS.byteLength + 2);
  expect(hub.bytesSent).toBeLessThanOrEqual(WEIGHTS.byteLength + 2 + 20 * 4000);
});

it('goes on behind what a command left that was ended', async () => {
  hub.push(REPO, { files: { 'config.json': '{}', 'model.safetensors': WEIGHTS } });
  hub.breaks.push(30_000, 0, 0, 0, 0, 0, 0, 0);
  await expect(find(REPO)).rejects.toMatchObject({ code: 'HUB_UNREACHABLE' });
  hub.breaks.length = 0;
  hub.bytesSent = 0;
  await find(REPO);
  expect(hub.bytesSent).toBeLessThan(WEIGHTS.byteLength - 20_000);
});

it('starts over where the server has no ranges', async () => {
  hub.push(REPO, { files: { 'config.json': '{}', 'model.safetensors': WEIGHTS } });
  hub.ignoresRanges = true;
  hub.breaks.push(30_000);
  const path = await find(REPO);
  expect(readFileSync(join(path, 'model.safetensors')).equals(WEIGHTS)).toBe(true);
});

it('refuses bytes that are not what the Hub names, and removes them', async () => {
  const commit = hub.push(REPO, { files: FILES });
  hub.corrupts = true;
  await expect(find(REPO)).rejects.toThrow(/config\.json: expected bytes with the hash/);
  const left = join(cache(), 'models--ocean--whale', 'snapshots', commit, 'config.json');
  expect(existsSync(left)).toBe(false);
  hub.corrupts = false;
  await find(REPO);
  expect(readFileSync(left, 'utf8')).toBe(FILES['config.json']);
});

it('downloads once for two commands', async () => {
  hub.push(REPO, { files: FILES });
  const [first, second] = await Promise.all([find(REPO), find(REPO)]);
  expect(first).toEqual(second);
  const needed = 100_000 + FILES['config.json'].length + FILES['tokenizer.json'].length;
  expect(hub.bytesSent).toBe(needed);
});

it('names the command that it waits for', async () => {
  hub.push(REPO, { files: FILES });
  const locks = join(cache(), '.locks', 'models--ocean--whale');
  mkdirSync(locks, { recursive: true });
  const lock = await lockDirectory(nodeFiles, locks);
  const notes: string[] = [];
  const onNote = (text: string) => {
    notes.push(text);
    void lock.release();
  };
  await find(REPO, { onNote });
  expect(notes).toEqual([
    `Another command downloads ${REPO}, process ${process.pid} on ${hostname()}; this one waits for it.`,
  ]);
});

it('keeps a commit while its branch moves, without asking', async () => {
  const old = hub.push(REPO, { files: FILES });
  await find(REPO);
  const moved = hub.push(REPO, { files: { ...FILES, 'config.json': '{"model_type":"llama"}' } });
  hub.requests.length = 0;
  const kept = await find(`${REPO}@${old}`);
  expect(readFileSync(join(kept, 'config.json'), 'utf8')).toBe(FILES['config.json']);
  expect(hub.requests).toEqual([]);
  expect(hubNameOf(await find(REPO))).toBe(`${REPO}@${moved}`);
});

it('works from the cache without the Hub', async () => {
  hub.push(REPO, { files: FILES });
  const found = await find(REPO);
  hub.requests.length = 0;
  expect(await find(REPO, { env: { HF_HUB_OFFLINE: '1' } })).toEqual(found);
  expect(hub.requests).toEqual([]);
  const notes: string[] = [];
  const gone = { HF_ENDPOINT: 'http://127.0.0.1:9' };
  expect(await find(REPO, { env: gone, onNote: (text) => notes.push(text) })).toEqual(found);
  expect(notes.join()).toMatch(/can't be reached.*The model in the cache is used: ocean\/whale@/);
  await expect(find('ocean/shark', { env: gone })).rejects.toThrow(/can't be reached/);
  const offline = find('ocean/shark', { env: { HF_HUB_OFFLINE: '1' } });
  await expect(offline).rejects.toThrow(
    /no directory ocean\/shark here.* not whole in the cache .* HF_HUB_OFFLINE/,
  );
});

it('shows the token to the Hub alone', async () => {
  hub.push(REPO, { files: FILES, token: 'secret' });
  await expect(find(REPO)).rejects.toThrow(/has no model of that name.*set HF_TOKEN/);
  await find(REPO, { env: { HF_TOKEN: 'secret' } });
  expect(hub.requests.filter((line) => line.includes('large'))).toEqual(['GET large', 'GET large']);
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, 'token'), 'secret\n');
  rmSync(cache(), { recursive: true });
  await find(REPO);
});

it.each<[string, (repo: string) => string | undefined, RegExp]>([
  [
    'an unknown model',
    () => 'ocean/shark',
    /no directory ocean\/shark here, and http.* has no model of that name \(401\)/,
  ],
  ['an unknown revision', (repo) => `${repo}@v9`, /has no revision "v9"/],
  [
    'a gated model',
    (repo) => void hub.push(repo, { files: FILES, isGated: true }),
    /is gated. Accept its terms on http.*ocean\/whale/,
  ],
  [
    'adapters',
    (repo) => void hub.push(repo, { files: { 'adapter_config.json': '{}' } }),
    /holds adapters/,
  ],
  [
    'a repository without a model',
    (repo) => void hub.push(repo, { files: { 'README.md': 'Soon.' } }),
    /holds no config\.json\. Name a model in the Hugging Face layout/,
  ],
  [
    'weights in another format',
    (repo) => void hub.push(repo, { files: { 'config.json': '{}', 'pytorch_model.bin': 'x' } }),
    /holds weights in pytorch_model\.bin.*refs\/pr\/N/,
  ],
  [
    'a Hub that is too busy',
    () => {
      const headers = { 'retry-after': '3600' };
      hub.answers.push({ status: 429, headers });
    },
    /too many requests from here \(429\), and asks to wait 3600 s/,
  ],
  [
    'a Hub that fails',
    () => void hub.answers.push(...Array.from({ length: 4 }, () => ({ status: 503 }))),
    /answers 503/,
  ],
])('says what to do about %s', async (_, change, message) => {
  hub.push(REPO, { files: FILES });
  const name = change(REPO) ?? REPO;
  await expect(find(name)).rejects.toThrow(message);
});

it('asks again where the Hub was busy for a moment', async () => {
  hub.push(REPO, { files: FILES });
  hub.answers.push({ status: 503 }, { status: 429, headers: { 'retry-after': '0' } });
  await find(REPO);
});

it('shares its cache with other programs', async () => {
  const commit = hub.push(REPO, { files: FILES });
  await find(REPO);
  const { repos, warnings } = await scanCacheDir(cache());
  expect(warnings).toEqual([]);
  expect(repos.map(({ id }) => id)).toEqual([{ name: REPO, type: 'model' }]);
  const [{ revisions }] = repos as [(typeof repos)[0]];
  expect(revisions.map(({ commitOid, refs }) => [commitOid, refs])).toEqual([[commit, ['main']]]);

  rmSync(cache(), { recursive: true });
  vi.spyOn(console, 'debug').mockImplementation(() => {}); // the library tells what it downloads
  await snapshotDownload({ repo: REPO, hubUrl: hub.endpoint, cacheDir: cache() });
  hub.requests.length = 0;
  const path = await find(REPO);
  expect(path).toContain(commit);
  expect(hub.requests).toEqual([
    `GET /api/models/${REPO}/revision/main`,
    `GET /api/models/${REPO}/tree/${commit}`, // what the model is without is noted once
  ]);
  await find(REPO);
  expect(hub.requests).toHaveLength(3);
});

it('writes nothing beside the cache, whatever a server names its files', async () => {
  const index = { weight_map: { a: '../../../../out.safetensors' } };
  hub.push(REPO, {
    files: {
      'config.json': '{}',
      // It has the same content, so that nothing need be asked for.
      'tokenizer.json': WEIGHTS,
      'model.safetensors.index.json': JSON.stringify(index),
      '../../../../out.safetensors': WEIGHTS,
    },
  });
  await find(REPO).catch(() => {});
  expect(existsSync(join(folder, 'out.safetensors'))).toBe(false);
});
