// Commands take a model by its name on the Hub, which a server plays here.
import { createHash } from 'node:crypto';
import { existsSync, mkdtempSync, readFileSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { Decoder, type HostTensor, stateDict, writeSafetensors } from '@shardweave/nn';
import { Device } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { afterAll, afterEach, beforeAll, beforeEach, expect, it } from 'vitest';
import { SignalError } from '../src/errors.js';
import { Interrupt } from '../src/interrupt.js';
import { PACED_BYTES, PlayedHub } from './support/hub-server.ts';
import { runCli } from './support/run-cli.js';
import { ROOT } from './support/run-flags.js';

const REPO = 'ocean/whale';
const CONFIG = {
  model_type: 'qwen3',
  vocab_size: 512,
  hidden_size: 32,
  intermediate_size: 64,
  head_dim: 16,
  num_hidden_layers: 1,
  num_attention_heads: 2,
  num_key_value_heads: 1,
  max_position_embeddings: 64,
  tie_word_embeddings: true,
} as const;
const tokenizer = (name: string) => readFileSync(`${ROOT}tooling/tokenizer/${name}`);

let state: ReadonlyMap<string, HostTensor>;
let hub: PlayedHub;
let folder: string;
const keep = mkdtempSync(join(tmpdir(), 'hub-data-'));
afterAll(() => rmSync(keep, { recursive: true }));

beforeAll(async () => {
  const backend = await createCpuBackend({ threads: 1 });
  const device = new Device(backend);
  state = await stateDict(new Decoder(device, CONFIG));
  device.dispose();
  await backend.dispose();
});
beforeEach(async () => {
  hub = await PlayedHub.open();
  folder = mkdtempSync(join(tmpdir(), 'hub-commands-'));
});
afterEach(async () => {
  await hub[Symbol.asyncDispose]();
  rmSync(folder, { recursive: true });
});

/** Publishes a commit of the model; the text of its README makes it another one. */
const publish = (readme: string, weights = state, repo = REPO) =>
  hub.push(repo, {
    files: {
      'README.md': readme,
      'config.json': JSON.stringify(CONFIG),
      'model.safetensors': writeSafetensors(weights),
      'tokenizer.json': tokenizer('tokenizer.json'),
      'tokenizer_config.json': tokenizer('tokenizer_config.json'),
    },
  });

const run = (line: string, options: Parameters<typeof runCli>[1] = {}) =>
  runCli(line.split(' '), {
    ...options,
    env: { HF_ENDPOINT: hub.endpoint, HF_HOME: folder, HF_HUB_OFFLINE: '' },
  });

const SMALL = `--device cpu --data ${ROOT}tooling/reference/data/tiny/text.txt --transport memory --seq 32 --batch 2 --lora-rank 2 --cache ${keep}`;

it('trains adapters beside a model by its name, and goes on beside the same commit', async () => {
  const commit = publish('first');
  const out = join(folder, 'run');
  const line = `train --model ${REPO} ${SMALL} --quiet --out ${out} --save-every 1`;
  const first = await run(`${line} --steps 2`);
  expect([first.code, first.err]).toEqual([0, '']);
  const config = readFileSync(join(out, 'config.yaml'), 'utf8');
  expect(config).toContain(`model: ${REPO}@${commit}`);
  const adapter = JSON.parse(readFileSync(join(out, 'adapter', 'adapter_config.json'), 'utf8'));
  expect(adapter.base_model_name_or_path).toBe(REPO);

  publish('moved');
  const { bytesSent } = hub;
  const more = await run(`${line} --steps 3 --resume auto`);
  expect([more.code, more.err]).toEqual([0, '']);
  expect(readFileSync(join(out, 'config.yaml'), 'utf8')).toContain(`${REPO}@${commit}`);
  expect(hub.bytesSent).toBe(bytesSent);
  for (const [i, resume] of [out, join(out, 'saves', 'step-000003')].entries()) {
    const other = join(folder, `beside-${i}`);
    const beside = await run(
      `train --model ${REPO} ${SMALL} --quiet --steps 4 --resume ${resume} --out ${other}`,
    );
    expect([beside.code, beside.err]).toEqual([0, '']);
    expect(readFileSync(join(other, 'config.yaml'), 'utf8')).toContain(`${REPO}@${commit}`);
  }

  expect(adapter.revision).toBe(commit);
  const say = `--adapter ${out} --device cpu --max-tokens 3 --prompt Call --temperature 0 --quiet`;
  hub.requests.length = 0;
  const said = await run(`generate --model ${REPO} ${say}`);
  expect(hub.requests).toEqual([]); // the commit is that of the adapters
  expect(said).toEqual(await run(`generate --model ${REPO}@${commit} ${say}`));
  expect([said.code, said.err]).toEqual([0, '']);
  const moved = await run(`generate --model ${REPO}@main ${say}`);
  expect(moved.code).toBe(0);
  publish('other', state, 'ocean/shark');
  const other = await run(`generate --model ocean/shark ${say}`.replace(' --quiet', ''));
  expect(other.err).toBe(
    `warning: --adapter: these adapters were trained beside ${REPO}@${commit}, and --model is ocean/shark. Beside other weights they say nothing of use.\n`,
  );
  const lora = join(folder, 'lora.gguf');
  const { code, err } = await run(`gguf --model ${REPO} --adapter ${out} --out ${lora}`);
  expect([code, err]).toEqual([0, '']);
  expect(readFileSync(join(folder, 'lora.Modelfile'), 'utf8')).toContain('ADAPTER ./lora.gguf\n');
});

it('plans without the weights', async () => {
  publish('first');
  const { code, out } = await run(`plan --model ${REPO} ${SMALL}`);
  expect(code).toBe(0);
  expect(out).toContain(`${REPO}@`);
  const weights = writeSafetensors(state).byteLength;
  const others = ['tokenizer.json', 'tokenizer_config.json'].map((name) => tokenizer(name).length);
  const headerBytes = Number(Buffer.from(writeSafetensors(state)).readBigUInt64LE()) + 8;
  expect(hub.bytesSent).toBeLessThan(others[0]! + others[1]! + headerBytes + 1000);
  expect(weights).toBeGreaterThan(headerBytes + 1000);
  expect(out).not.toContain('random');
});

it('plans nothing for weights that are of another model', async () => {
  publish('first', new Map([...state].filter(([name]) => !name.endsWith('q_norm.weight'))));
  const { code, err } = await run(`plan --model ${REPO} ${SMALL}`);
  expect(code).toBe(2);
  expect(err).toMatch(
    /^error: --model: ocean\/whale@\w+ can't be used\. expected '[\w.]+q_norm\.weight' .* got none\. Nothing of its weights was downloaded/,
  );
});

it('names a GGUF as the Hub names its model', async () => {
  publish('first');
  const path = join(folder, 'whale.gguf');
  const { code, err } = await run(`gguf --model ${REPO} --out ${path}`);
  expect([code, err]).toEqual([0, '']);
  expect(readFileSync(path).includes(Buffer.from(REPO))).toBe(true);
});

it('leaves nothing where a name is unknown', async () => {
  const out = join(folder, 'run');
  const { code, err } = await run(`train --model ${REPO} ${SMALL} --out ${out}`);
  expect(code).toBe(2);
  expect(err).toMatch(/^error: --model: there is no directory ocean\/whale here, and http/);
  expect(existsSync(out)).toBe(false);
});

it('says at Ctrl-C how far a download came, and goes on there', async () => {
  const commit = publish('first');
  const weights = writeSafetensors(state);
  const blob = join(
    ...[folder, 'hub', 'models--ocean--whale', 'blobs'],
    createHash('sha256').update(weights).digest('hex'),
  );
  const interrupt = new Interrupt({ exit: () => {} });
  const line = `generate --model ${REPO} --device cpu --max-tokens 1 --prompt Call`;
  let isGoingOn = false;
  hub.pace = async (sent) => {
    if (sent === PACED_BYTES && !isGoingOn) {
      while ((statSync(`${blob}.incomplete`, { throwIfNoEntry: false })?.size ?? 0) < sent) {
        await nextTurn();
      }
      interrupt.ask(new SignalError('SIGINT'));
    }
    return true;
  };
  const ended = await run(line, { interrupt, isTTY: true });
  expect(ended.code).toBe(130);
  expect(ended.err).toMatch(
    /Kerror: Ctrl-C ended the download: 64\.0 KiB of [\d.]+ KiB of ocean\/whale have come\. What has come is kept: the same command goes on there\.\n$/,
  );
  isGoingOn = true;
  hub.bytesSent = 0;
  const { code } = await run(line);
  expect([code, hub.bytesSent]).toEqual([0, weights.byteLength - PACED_BYTES]);
  expect(existsSync(join(blob, '../../snapshots', commit, 'model.safetensors'))).toBe(true);
});
