// A GGUF file of a repository by its name: which file a name means, what is downloaded of it, and
// commands over it.

import { existsSync, mkdtempSync, readFileSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { modelGguf } from '@shardweave/gguf';
import { type ByteSource, makeModel, parseModelConfig, stateDict } from '@shardweave/nn';
import { Device } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { afterEach, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { writePieces } from '../src/files/write-file.js';
import { CachedRepo } from '../src/hub/hub-cache.js';
import { chooseGguf } from '../src/hub/hub-gguf.js';
import { type HubOptions, hubModel } from '../src/hub/hub-model.js';
import { hubNameOf, isHead } from '../src/hub/hub-name.js';
import { modelNameText, parseModelName } from '../src/hub/model-name.js';
import { readModelConfig } from '../src/model/model-directory.js';
import { ggufShards } from './support/gguf-shards.js';
import { PlayedHub } from './support/hub-server.js';
import { runCli } from './support/run-cli.js';
import { ROOT } from './support/run-flags.js';

const REPO = 'ocean/whale-GGUF';
/** Its factors of rotation are a tensor in the file, and its weights are more than its header. */
const CONFIG = {
  model_type: 'llama',
  ...{ vocab_size: 512, hidden_size: 64, intermediate_size: 256, num_hidden_layers: 4 },
  ...{ num_attention_heads: 4, num_key_value_heads: 2, max_position_embeddings: 64 },
  rope_scaling: {
    ...{ rope_type: 'llama3', factor: 8, low_freq_factor: 1, high_freq_factor: 4 },
    original_max_position_embeddings: 32,
  },
};
const MODEL = 'whale-Q8_0.gguf';
const SHARDS = [1, 2].map((number) => `Q4_0/whale-Q4_0-0000${number}-of-00002.gguf`);
const keep = newFolder();
const local = join(keep, MODEL);

let bytes: Buffer;
let shards: Buffer[];
let hub: PlayedHub;
let folder: string;

async function all(pieces: AsyncIterable<Uint8Array> | Iterable<Uint8Array>): Promise<Buffer> {
  const parts: Uint8Array[] = [];
  for await (const piece of pieces) {
    parts.push(piece.slice());
  }
  return Buffer.concat(parts);
}

beforeAll(async () => {
  const device = new Device(createReferenceBackend());
  const config = JSON.stringify(CONFIG);
  const state = await stateDict(makeModel(device, parseModelConfig(config), { seed: 3 }));
  device.dispose();
  const names = ['tokenizer.json', 'tokenizer_config.json'];
  const texts = names.map(
    (name) => [name, readFileSync(`${ROOT}tooling/tokenizer/${name}`, 'utf8')] as const,
  );
  const model = { texts: new Map([['config.json', config], ...texts]), state };
  const made = async (type: 'q8_0' | 'q4_0') =>
    all(modelGguf(model, { type, name: 'whale' }).pieces());
  bytes = await made('q8_0');
  await writePieces(local, [bytes]);
  const other = await made('q4_0');
  const source: ByteSource = {
    byteLength: other.byteLength,
    read: async (into, { offset }) => into.set(other.subarray(offset, offset + into.byteLength)),
  };
  shards = await Promise.all((await ggufShards(source)).map((file) => all(file.pieces())));
});
beforeEach(async () => {
  hub = await PlayedHub.open();
  folder = mkdtempSync(join(tmpdir(), 'hub-gguf-'));
});
afterEach(async () => {
  vi.restoreAllMocks();
  await hub[Symbol.asyncDispose]();
  rmSync(folder, { recursive: true });
});

const publish = (readme = '', more: Readonly<Record<string, Uint8Array | string>> = {}) =>
  hub.push(REPO, {
    files: {
      'README.md': readme,
      'config.json': '{"model_type":"llama"}',
      [MODEL]: bytes,
      [SHARDS[0]!]: shards[0]!,
      [SHARDS[1]!]: shards[1]!,
      'mmproj-whale-Q8_0.gguf': 'GGUF',
      'whale.imatrix.gguf': 'GGUF',
      ...more,
    },
  });

const envOf = () => ({ HF_ENDPOINT: hub.endpoint, HF_HOME: folder, HF_HUB_OFFLINE: '' });
const find = (name: string, options: HubOptions = {}) =>
  hubModel(parseModelName(name)!, {
    pauseMs: 5,
    ...options,
    env: { ...envOf(), ...options.env },
  });
const snapshot = (commit: string, name: string) =>
  join(folder, 'hub', 'models--ocean--whale-GGUF', 'snapshots', commit, name);

describe('a name of a model', () => {
  const name = { repo: 'a/b', revision: undefined, file: undefined };
  it.each<[string, ReturnType<typeof parseModelName>]>([
    ['a/b', name],
    ['hf:a/b', name],
    ['a/b:q4_k_m', { ...name, file: 'q4_k_m' }],
    ['a/b@refs/pr/7:Q8_0', { ...name, revision: 'refs/pr/7', file: 'Q8_0' }],
    ['hf:a/b@v1:in/c.gguf', { ...name, revision: 'v1', file: 'in/c.gguf' }],
    ['hf:a/b/in/c.gguf', { ...name, file: 'in/c.gguf' }],
    ['a/b/c.gguf', undefined],
    ['a/b.gguf', undefined],
    ['a/b:', undefined],
    ['a/b:c:d', undefined],
    ['C:\\a\\b.gguf', undefined],
  ])('%s', (given, expected) => {
    expect(parseModelName(given)).toEqual(expected);
  });
});

describe('the file that a name means', () => {
  const many = [
    ...['README.md', 'config.json', 'w-Q4_K_M.gguf', 'w-Q4_K_S.gguf', 'w-IQ4_XS.gguf'],
    ...['w-UD-Q8_K_XL.gguf', 'w.f16.gguf', 'mmproj-w-f16.gguf', 'w-imatrix.gguf'],
    ...['BF16/w-00001-of-00002.gguf', 'BF16/w-00002-of-00002.gguf'],
  ];
  const bf16 = many.slice(-2);
  it.each<[string | undefined, readonly string[]]>([
    [undefined, ['w-Q4_K_M.gguf']],
    ['q4_k_s', ['w-Q4_K_S.gguf']],
    ['UD-Q8_K_XL', ['w-UD-Q8_K_XL.gguf']],
    ['F16', ['w.f16.gguf']],
    ['BF16', bf16],
    ['w-IQ4_XS.gguf', ['w-IQ4_XS.gguf']],
    [bf16[1]!, bf16],
  ])('%s', (file, paths) => {
    expect(chooseGguf(many, { repo: 'a/w', file })).toEqual(paths);
  });

  it.each<[string, readonly string[], string | undefined, string]>([
    [
      ...(['a type that is not there', many.slice(0, 5), 'Q4_0'] as const),
      'a/w has no GGUF file of Q4_0, but w-Q4_K_M.gguf, w-Q4_K_S.gguf, w-IQ4_XS.gguf. Name one as hf:a/w:w-Q4_K_M.gguf.',
    ],
    [
      ...(['no type where the usual one is missing', ['w-Q8_0.gguf', 'w-F16.gguf']] as const),
      undefined,
      'a/w has no GGUF file of the usual Q4_K_M, but w-Q8_0.gguf, w-F16.gguf. Name one as hf:a/w:w-Q8_0.gguf.',
    ],
    [
      ...(['a type of two files', ['w-Q8_0.gguf', 'v-Q8_0.gguf'], 'Q8_0'] as const),
      'a/w has several GGUF files of Q8_0: w-Q8_0.gguf, v-Q8_0.gguf. Name one as hf:a/w:w-Q8_0.gguf.',
    ],
    [
      ...(['a model in another format', ['model.safetensors'], 'Q8_0'] as const),
      'a/w has no GGUF files. Name it without ":Q8_0".',
    ],
    [
      ...(['an encoder of images', ['mmproj-w-Q4_K_M.gguf'], undefined] as const),
      'a/w holds mmproj-w-Q4_K_M.gguf, and no model of texts. Name the repository of that.',
    ],
    [
      ...(['a file that is missing of several', bf16.slice(0, 1), 'BF16'] as const),
      'expected BF16/w-00001-of-00002.gguf of a/w in 2 files, got no BF16/w-00002-of-00002.gguf. Name another file of it.',
    ],
  ])('is none for %s', (_, paths, file, message) => {
    expect(() => chooseGguf(paths, { repo: 'a/w', file })).toThrow(`--model: ${message}`);
  });
});

it('is downloaded alone, once, and found again without the Hub', async () => {
  const commit = publish();
  const path = await find(`hf:${REPO}:q8_0`);
  expect(path).toBe(snapshot(commit, MODEL));
  expect(readFileSync(path).equals(bytes)).toBe(true);
  expect(hubNameOf(path)).toBe(`${REPO}@${commit}:${MODEL}`);
  expect(modelNameText(parseModelName(hubNameOf(path)!)!)).toBe(hubNameOf(path));
  expect(existsSync(snapshot(commit, SHARDS[0]!))).toBe(false);
  hub.requests.length = 0;
  for (const name of [`${REPO}@${commit}:Q8_0`, hubNameOf(path)!]) {
    expect(await find(name)).toBe(path);
  }
  expect(await find(`${REPO}:Q8_0`, { env: { HF_HUB_OFFLINE: '1' } })).toBe(path);
  expect(hub.requests).toEqual([]);
  await expect(find(`${REPO}:Q4_0`, { env: { HF_HUB_OFFLINE: '1' } })).rejects.toThrow(
    /is not whole in the cache .* HF_HUB_OFFLINE/,
  );
});

it('comes with all its files, in a folder too, behind what a broken connection left', async () => {
  const commit = publish();
  await expect(find(REPO)).rejects.toThrow(
    `--model: ${REPO} has no GGUF file of the usual Q4_K_M, but ${MODEL}, ${SHARDS[0]}.`,
  );
  hub.breaks.push(...Array.from({ length: 9 }, (_, i) => 70_000 - i));
  const path = await find(`${REPO}:Q4_0`);
  expect(path).toBe(snapshot(commit, SHARDS[0]!));
  const got = SHARDS.map((name) => readFileSync(snapshot(commit, name)));
  expect(got.map((file, i) => file.equals(shards[i]!))).toEqual([true, true]);
  rmSync(snapshot(commit, SHARDS[1]!));
  expect(await find(`${REPO}:Q4_0`, { needsWeights: false })).not.toBe(path);
  await find(`${REPO}@${commit}:Q4_0`);
  expect(existsSync(snapshot(commit, SHARDS[1]!))).toBe(true);
});

it('is read from a cache that another user writes', async () => {
  publish();
  const path = await find(`${REPO}:Q8_0`);
  vi.spyOn(CachedRepo.prototype, 'setCommit').mockImplementation(() => {
    throw Object.assign(new Error('EACCES'), { code: 'EACCES', errno: -13, syscall: 'open' });
  });
  publish('moved');
  await expect(find(`${REPO}:Q4_0`)).rejects.toThrow(/can't be written \(permission denied\)/);
  const [, commit = ''] = /@(\w+)/.exec(hubNameOf(path)!)!;
  expect(await find(`${REPO}@${commit}:Q8_0`)).toBe(path);
});

it('is refused by its header before its weights are downloaded', async () => {
  const strange = Buffer.from(bytes);
  strange.write('whale', bytes.indexOf('llama'));
  publish('', { 'strange-Q5_0.gguf': strange });
  await expect(find(`${REPO}:Q5_0`)).rejects.toThrow(
    /--model: ocean\/whale-GGUF@\w+:strange-Q5_0\.gguf can't be used\. .*whale.* Nothing of its weights was downloaded\./,
  );
  expect(hub.bytesSent).toBeLessThan(bytes.byteLength / 2);
});

const run = (line: string) => runCli(line.split(' '), { env: envOf() });
const SMALL = `--device cpu --data ${ROOT}tooling/reference/data/tiny/text.txt --threads 1 --transport memory --seq 32 --batch 2 --lora-rank 2 --cache ${keep}`;

it('plans what a downloaded one needs, from the header alone', async () => {
  publish();
  const planned = async (model: string) => {
    const { code, out, err } = await run(`plan --model ${model} ${SMALL}`);
    expect([code, err]).toEqual([0, '']);
    return out.replaceAll(/^(?:data|.*whale).*$| +[\d.]+ m?s$/gm, '');
  };
  const expected = await planned(local);
  expect(await planned(`${REPO}:Q8_0`)).toBe(expected);
  expect(hub.bytesSent).toBeLessThan(bytes.byteLength / 2);
  hub.requests.length = 0;
  expect(await planned(`${REPO}:Q8_0`)).toBe(expected);
  expect(hub.requests).toEqual([`GET /api/models/${REPO}/revision/main`]);
  await planned(`${REPO}:Q4_0`);
});

it('is described by its header, and by the numbers behind it that describe it, too', async () => {
  publish();
  const config = await readModelConfig(local);
  for (const file of ['Q8_0', 'Q4_0']) {
    const path = await find(`${REPO}:${file}`, { needsWeights: false });
    expect(isHead(path)).toBe(true);
    expect(await readModelConfig(path)).toEqual(config);
  }
});

it('is trained beside, and goes on, at the commit of its first run', async () => {
  const commit = publish();
  const out = join(folder, 'run');
  const line = `train --model hf:${REPO}/${MODEL} ${SMALL} --quiet --out ${out} --save-every 1`;
  const [first, other] = [await run(`${line} --steps 1`), publish('moved')];
  expect([first.code, first.err]).toEqual([0, '']);
  const more = await run(`${line} --steps 2 --resume auto`);
  expect([more.code, more.err]).toEqual([0, '']);
  const kept = `model: ${REPO}@${commit}:${MODEL}`;
  expect(readFileSync(join(out, 'config.yaml'), 'utf8')).toContain(kept);
  expect(existsSync(snapshot(other, MODEL))).toBe(false);
  const config = JSON.parse(readFileSync(join(out, 'adapter', 'adapter_config.json'), 'utf8'));
  expect(config).toMatchObject({ base_model_name_or_path: REPO, revision: commit });

  rmSync(join(folder, 'hub'), { recursive: true });
  const lora = join(folder, 'lora.gguf');
  const made = await run(`gguf --model ${REPO}:Q8_0 --adapter ${out} --out ${lora}`);
  expect([made.code, made.err]).toEqual([0, '']);
  const modelfile = readFileSync(join(folder, 'lora.Modelfile'), 'utf8');
  expect(modelfile).toBe(`FROM hf.co/${REPO}:${MODEL}\nADAPTER ./lora.gguf\n`);
  expect(statSync(snapshot(commit, ''), { throwIfNoEntry: false })?.isDirectory()).toBe(true);
  expect(existsSync(snapshot(commit, MODEL))).toBe(false);
});

it('says how a name is written', async () => {
  const { code, err } = await run(`plan --model hf:whale ${SMALL}`);
  expect([code, err]).toEqual([
    2,
    'error: --model: expected hf:org/name[@revision][:file], got "hf:whale". Copy the name from its page on the Hub.\n',
  ]);
});
