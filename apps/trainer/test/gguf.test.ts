// The command `gguf` makes a file from a model directory. The file is whole or does not exist, and
// what the command cannot do it explains.

import {
  copyFileSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { Decoder, modelFiles, stateDict } from '@shardweave/nn';
import { Device } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { beforeAll, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { SignalError } from '../src/errors.js';
import { Interrupt } from '../src/interrupt.js';
import { runCli } from './support/run-cli.js';
import { ROOT } from './support/run-flags.js';

const folder = newFolder();
const model = join(folder, 'small-llama');

beforeAll(async () => {
  const backend = await createCpuBackend({ threads: 1 });
  const device = new Device(backend);
  const decoder = new Decoder(device, {
    model_type: 'llama',
    vocab_size: 512,
    hidden_size: 32,
    intermediate_size: 64,
    num_hidden_layers: 1,
    num_attention_heads: 2,
    max_position_embeddings: 64,
    tie_word_embeddings: true,
  });
  mkdirSync(model);
  // These weights are in several files, which an index lists.
  const files = modelFiles(decoder.config, await stateDict(decoder), { maxFileBytes: 50_000 });
  for (const { name, pieces } of files) {
    const all: Uint8Array[] = [];
    for await (const piece of pieces()) {
      all.push(piece);
    }
    writeFileSync(join(model, name), Buffer.concat(all));
  }
  for (const name of ['tokenizer.json', 'tokenizer_config.json']) {
    copyFileSync(`${ROOT}tooling/tokenizer/${name}`, join(model, name));
  }
  device.dispose();
  await backend.dispose();
});

const run = (...args: string[]) => runCli(['gguf', ...args]);

describe('shardweave gguf', () => {
  it.each([
    ['f16', 1],
    ['q8_0', 0.55],
    // The table, which is the head as well, stays in q8_0 where rows are no blocks of 256.
    ['q4_0', 0.47],
  ])('writes a model in shards as %s', async (type, half) => {
    const path = join(folder, `${type}.gguf`);
    const { code, out, err } = await run('--model', model, '--out', path, '--type', type);
    expect([code, err]).toEqual([0, '']);
    expect(out).toMatch(
      new RegExp(`^${path}: llama, 26\\.\\d+k parameters, ${type}, [\\d.]+ KiB\\n$`),
    );
    expect(readFileSync(path).subarray(0, 4).toString()).toBe('GGUF');
    const names = 'general.name\u0008\0\0\0\u000b\0\0\0\0\0\0\0small-llama';
    expect(readFileSync(path).includes(names)).toBe(true);
    const weights = 26_720 * 2 * half;
    const texts = 30_000; // This is the most that texts of the vocabulary take.
    expect(statSync(path).size).toBeGreaterThan(weights);
    expect(statSync(path).size).toBeLessThan(weights + texts);
  });

  it('prints its flags, and nothing with --quiet', async () => {
    const help = await run('--help');
    expect(help.code).toBe(0);
    expect(help.out).toMatch(
      /--type <f32\|f16\|bf16\|q8_0\|q6_K\|.*\|q4_K_M\|.*\|q4_0> .*\(default: f16; of adapters\s+f32\)/s,
    );
    const quiet = await run('--model', model, '--out', join(folder, 'quiet.gguf'), '--quiet');
    expect(quiet).toEqual({ code: 0, out: '', err: '' });
  });

  it('leaves no file where it fails', async () => {
    const broken = join(folder, 'broken');
    mkdirSync(broken);
    for (const name of readdirSync(model)) {
      copyFileSync(join(model, name), join(broken, name));
    }
    // The value is too large for f16, which is noticed only when the table is written.
    const shard = readdirSync(broken).find((name) => name.endsWith('.safetensors'))!;
    const bytes = readFileSync(join(broken, shard));
    bytes.writeFloatLE(1e6, bytes.byteLength - 4);
    writeFileSync(join(broken, shard), bytes);
    const path = join(folder, 'failed.gguf');
    const { code, out, err } = await run('--model', broken, '--out', path, '--type', 'f16');
    expect([code, out]).toEqual([2, '']);
    expect(err).toMatch(
      /^error: --model: .*broken can't be a GGUF\. .*got 1000000\..*bf16 or f32\.\n$/,
    );
    expect(readdirSync(folder).filter((name) => name.startsWith('failed'))).toEqual([]);
  });

  it('goes over no file that is there', async () => {
    const path = join(folder, 'kept.gguf');
    writeFileSync(path, 'kept');
    const { code, out, err } = await run('--model', model, '--out', path);
    expect([code, out]).toEqual([2, '']);
    expect(err).toMatch(/^error: --out: .*kept\.gguf is there already\. Choose another file/);
    expect(readFileSync(path, 'utf8')).toBe('kept');
  });

  it('leaves nothing of a file at Ctrl-C', async () => {
    const path = join(folder, 'ended.gguf');
    const args = ['gguf', '--model', model, '--out', path];
    const interrupt = new Interrupt({ exit: () => {} });
    interrupt.ask(new SignalError('SIGINT'));
    const { code, out, err } = await runCli(args, { interrupt });
    expect({ code, out, err }).toEqual({
      code: 130,
      out: '',
      err: 'error: Ended by Ctrl-C.\n',
    });
    expect(readdirSync(folder).filter((name) => name.startsWith('ended'))).toEqual([]);
  });

  it.each<readonly [string, () => string[], RegExp]>([
    [
      'no --out',
      () => ['--model', model],
      /required option '--out <FILE>' not specified\. See --help/,
    ],
    [
      'an unknown type',
      () => ['--model', model, '--out', 'x', '--type', 'q4'],
      /--type: expected one of f32, f16, .*, q4_0, got "q4"\. Did you mean "?q4_K_M/,
    ],
    [
      'no directory',
      () => ['--model', join(folder, 'none'), '--out', 'x'],
      /got .*none, which is not there\. Train/,
    ],
    [
      'a directory that can not be made',
      () => ['--model', model, '--out', join(model, 'config.json/b')],
      /config\.json\/b can't be written \(not a directory/,
    ],
    ['words', () => ['model'], /expected flags alone|not specified/],
  ])('answers %s with a sentence', async (_, args, message) => {
    const { code, out, err } = await run(...args());
    expect([code, out]).toEqual([2, '']);
    expect(err).toMatch(message);
    expect(err).not.toMatch(/\.\./);
  });

  it('says which file lacks', async () => {
    const bare = join(folder, 'bare');
    mkdirSync(bare);
    for (const name of readdirSync(model).filter((name) => name !== 'tokenizer.json')) {
      copyFileSync(join(model, name), join(bare, name));
    }
    const { code, err } = await run('--model', bare, '--out', join(folder, 'bare.gguf'));
    expect(code).toBe(2);
    expect(err).toMatch(
      /can't be a GGUF, for it has no tokenizer\.json\. Put the model's own there; one that learnt/,
    );
  });
});
