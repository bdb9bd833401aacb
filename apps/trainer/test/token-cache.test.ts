// The cache of tokens knows a file again without reading it and never takes an edited one for the
// old, is bounded, and survives whoever dies beside it.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  existsSync,
  mkdirSync,
  readdirSync,
  statSync,
  truncateSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import { build } from 'esbuild';
import { describe, expect, it, onTestFinished, vi } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import type { CacheListing } from '../src/commands/doctor-cache.js';
import { DataBytes } from '../src/data/data-bytes.js';
import { prepareTokens } from '../src/data/prepare-tokens.js';
import { cacheLimit, listTokens, TokenCache } from '../src/data/token-cache.js';
import { TOKEN_FILES, TOKEN_FORMAT, TokenFile } from '../src/data/token-file.js';
import { UsageError } from '../src/errors.js';
import { runCli } from './support/run-cli.js';

const HOUR_MS = 3_600_000;

/** Prepares a text by the byte tokenizer; resolves with its tokens and the number of bytes read. */
async function prepared(file: string, cache: string) {
  let numRead = 0;
  const chunks = vi.spyOn(DataBytes.prototype, 'chunks').mockImplementation(async function* (
    this: DataBytes,
  ) {
    for await (const chunk of original.call(this)) {
      numRead += chunk.length;
      yield chunk;
    }
  });
  const model = { kind: 'preset', name: 'nano' } as const;
  const config = {
    data: file,
    valid: undefined,
    tokenizer: 'byte',
    model,
    head: { kind: 'lm' },
    cache,
  } as const;
  const files = await prepareTokens(config, { entry: '' }).finally(() => chunks.mockRestore());
  const path = files.train[0]!.directory;
  const tokens = await TokenFile.open(path);
  const text = Buffer.from(await tokens.read(0, tokens.index.tokens)).toString();
  await tokens.close();
  return { path, text, numRead };
}
const original = DataBytes.prototype.chunks;

/** Writes a file so that its stamp differs from the one before in its ctime alone. */
function rewrite(file: string, text: string): void {
  const before = statSync(file, { bigint: true });
  do {
    writeFileSync(file, text);
    utimesSync(file, Number(before.atimeMs) / 1000, 1_700_000_000);
  } while (statSync(file, { bigint: true }).ctimeNs === before.ctimeNs);
}

describe('a file that has tokens', () => {
  it('is known again without being read, once it has rested', async () => {
    const [cache, file] = [newFolder(), join(newFolder(), 'a.txt')];
    writeFileSync(file, 'some words');
    const clock = vi.spyOn(Date, 'now').mockReturnValue(statSync(file).ctimeMs + 1000);
    onTestFinished(() => void vi.restoreAllMocks());
    expect(await prepared(file, cache)).toMatchObject({ text: 'some words', numRead: 10 });
    // It was written a second ago, so its stamp is not trusted; its bytes are.
    expect(await prepared(file, cache)).toMatchObject({ text: 'some words', numRead: 10 });
    clock.mockReturnValue(statSync(file).ctimeMs + HOUR_MS);
    expect(await prepared(file, cache)).toMatchObject({ numRead: 10 });
    expect(await prepared(file, cache)).toMatchObject({ text: 'some words', numRead: 0 });
  });

  it('is another one when it was edited, though its size and mtime are the same', async () => {
    const [cache, file] = [newFolder(), join(newFolder(), 'a.txt')];
    writeFileSync(file, 'some words');
    utimesSync(file, 1_700_000_000, 1_700_000_000);
    vi.spyOn(Date, 'now').mockReturnValue(Date.now() + HOUR_MS);
    onTestFinished(() => void vi.restoreAllMocks());
    await prepared(file, cache);
    expect(await prepared(file, cache)).toMatchObject({ numRead: 0 });
    rewrite(file, 'same bytes');
    // Its size is known, so it is hashed before it is read for tokens.
    expect(await prepared(file, cache)).toMatchObject({ text: 'same bytes', numRead: 20 });
    rewrite(file, 'some words');
    expect(await prepared(file, cache)).toMatchObject({ text: 'some words', numRead: 10 });
  });

  it('is not known by a stamp of the tick in which it may change again', async () => {
    const [directory, file] = [newFolder(), join(newFolder(), 'a.txt')];
    writeFileSync(file, 'a');
    await using data = await DataBytes.open(file, '--data');
    const own = (await data.stamp())!;
    const stamp = [own];
    const ctimeMs = Number(own.ctime) / 1e6;
    await using cache = await TokenCache.open(directory);
    await cache.note(stamp, 'hash', ctimeMs + 1999);
    await cache.note(stamp, 'hash', ctimeMs - HOUR_MS); // by a clock that lags behind
    expect(await cache.hashOf(stamp)).toBeUndefined();
    await cache.note(stamp, 'hash', ctimeMs + 2001);
    expect(await cache.hashOf(stamp)).toBe('hash');
    for (const other of [{ inode: '1' }, { bytes: 2 }, { mtime: '1' }, { ctime: '1' }]) {
      expect(await cache.hashOf([{ ...own, ...other }])).toBeUndefined();
    }
  });

  it('is read once where its size is new', async () => {
    const [cache, directory] = [newFolder(), newFolder()];
    for (const text of ['a', 'bc', 'def']) {
      writeFileSync(join(directory, 'a.txt'), text);
      const { numRead } = await prepared(join(directory, 'a.txt'), cache);
      expect(numRead).toBe(text.length);
    }
  });
});

/** Puts a token file of that many bytes there that was used so many hours ago. */
function put(cache: string, key: string, { bytes, hours }: { bytes: number; hours: number }): void {
  const path = join(cache, 'tokens', key);
  mkdirSync(path, { recursive: true });
  const origin = { name: `${key}.txt`, tokenizer: 'byte', bytes, sha256: key };
  const index = { format: TOKEN_FORMAT, kind: 'stream', tokens: bytes, tokenBytes: 1, origin };
  writeFileSync(join(path, TOKEN_FILES.index), JSON.stringify(index));
  writeFileSync(join(path, TOKEN_FILES.tokens), '');
  truncateSync(join(path, TOKEN_FILES.tokens), bytes);
  const used = Date.now() / 1000 - hours * 3600;
  utimesSync(join(path, TOKEN_FILES.index), used, used);
}

describe('the bound', () => {
  it('takes what was used least recently, and nothing that a run uses', async () => {
    const directory = newFolder();
    for (const [key, hours] of [
      ['old', 9],
      ['used', 8],
      ['middle', 7],
      ['new', 1],
    ] as const) {
      put(directory, key, { bytes: 10_000, hours });
    }
    await using run = await TokenCache.open(directory);
    await run.use('used');
    utimesSync(join(directory, 'tokens/used', TOKEN_FILES.index), 1, 1);
    await using other = await TokenCache.open(directory);
    await other.trim(45_000);
    expect(readdirSync(join(directory, 'tokens'))).toHaveLength(4);
    await other.trim(35_000);
    expect(readdirSync(join(directory, 'tokens')).sort()).toEqual(['middle', 'new', 'used']);
    await other.trim(0);
    expect(readdirSync(join(directory, 'tokens'))).toEqual(['used']);
    await run[Symbol.asyncDispose]();
    await other.trim(0);
    expect(readdirSync(join(directory, 'tokens'))).toEqual([]);
  });

  it('is that of SHARDWEAVE_CACHE_MAXSIZE, and held when tokens are made', async () => {
    const [cache, file] = [newFolder(), join(newFolder(), 'a.txt')];
    writeFileSync(file, 'words');
    put(cache, 'old', { bytes: 2_000_000, hours: 9 });
    vi.stubEnv('SHARDWEAVE_CACHE_MAXSIZE', '1 MB');
    onTestFinished(() => void vi.unstubAllEnvs());
    const { path } = await prepared(file, cache);
    expect((await listTokens(cache)).map(({ key }) => join(cache, 'tokens', key))).toEqual([path]);
    expect(cacheLimit({ SHARDWEAVE_CACHE_MAXSIZE: '1.5GiB' })).toBe(1.5 * 2 ** 30);
    expect(cacheLimit({ SHARDWEAVE_CACHE_MAXSIZE: '500' })).toBe(500);
    expect(cacheLimit({})).toBe(20 * 2 ** 30);
    expect(() => cacheLimit({ SHARDWEAVE_CACHE_MAXSIZE: 'much' })).toThrow(UsageError);
  });
});

describe('doctor', () => {
  it('lists the cache, and clears what no run uses', async () => {
    const directory = newFolder();
    put(directory, 'old', { bytes: 3_000_000, hours: 9 });
    put(directory, 'used', { bytes: 2_000_000, hours: 8 });
    mkdirSync(join(directory, 'tokens/0123.abcd.part')); // as an earlier version left it
    await using run = await TokenCache.open(directory);
    await run.use('used');
    const listed = await runCli(['doctor', '--cache', directory]);
    const day = new Date(Date.now() - 9 * HOUR_MS).toISOString().slice(0, 10);
    expect(listed).toMatchObject({ code: 0, err: '' });
    const [title, ...lines] = listed.out.trim().split('\n');
    expect(title).toBe(
      `Tokens in ${directory}: 4.8 MiB, at most 20.0 GiB (SHARDWEAVE_CACHE_MAXSIZE)`,
    );
    expect(lines).toHaveLength(3);
    expect(lines).toContainEqual(
      expect.stringMatching(/ B {2}....-..-.. {2}of another version of shardweave$/),
    );
    expect(lines).toContain('    1.9 MiB  in use now  used.txt: 2.0M tokens (byte) of 1.9 MiB');
    expect(lines).toContain(`    2.9 MiB  ${day}  old.txt: 3.0M tokens (byte) of 2.9 MiB`);
    const { out } = await runCli(['doctor', '--cache', directory, '--json']);
    expect((JSON.parse(out) as CacheListing).held).toHaveLength(3);
    const cleared = await runCli(['doctor', '--clear-cache', directory]);
    expect(cleared.out).toBe(
      `Removed 2 token files with 2.9 MiB from ${directory}. 1 in use stay, with 1.9 MiB.\n`,
    );
    expect(readdirSync(join(directory, 'tokens'))).toEqual(['used']);
  });
});

it('what a killed process was making is removed by the next, and what it used is free', async () => {
  const directory = newFolder();
  put(directory, 'used', { bytes: 10, hours: 1 });
  const program = join(newFolder(), 'maker.mjs');
  await build({
    entryPoints: [new URL('support/token-maker.ts', import.meta.url).pathname],
    outfile: program,
    bundle: true,
    format: 'esm',
    platform: 'node',
    conditions: ['@shardweave/source'],
    logLevel: 'error',
  });
  const maker = spawn(process.execPath, [program, directory, 'used'], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  onTestFinished(() => void maker.kill('SIGKILL'));
  const [part] = (await once(maker.stdout, 'data')).map(String);
  {
    await using beside = await TokenCache.open(directory);
    await beside.trim(0);
    expect(existsSync(part!)).toBe(true);
    expect(readdirSync(join(directory, 'tokens'))).toEqual(['used']);
  }
  const closed = once(maker, 'close');
  maker.kill('SIGKILL');
  await closed;
  await using next = await TokenCache.open(directory);
  expect(existsSync(dirname(part!))).toBe(false);
  expect(readdirSync(join(directory, 'sessions'))).toHaveLength(1);
  expect((await listTokens(directory)).map(({ isInUse }) => isInUse)).toEqual([false]);
  await next.trim(0);
  expect(readdirSync(join(directory, 'tokens'))).toEqual([]);
});

it('a cache that can not be written serves what it has, and says so where it has nothing', async () => {
  const file = join(newFolder(), 'file');
  writeFileSync(file, '');
  await using cache = await TokenCache.open(file);
  expect(await cache.use('key')).toBeUndefined();
  expect(() => cache.newPart()).toThrow(/^--cache: .*file.* can't be written \(.*\)\. Give a dir/);
});
