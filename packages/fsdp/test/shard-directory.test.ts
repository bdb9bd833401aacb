// Sharded saves as files in a directory that all ranks share.

import { mkdtemp, readdir, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FsdpStateDictError, loadShards, saveShards } from '@shardweave/fsdp';
import { shardDirectory } from '@shardweave/fsdp/node';
import { readSafetensors } from '@shardweave/nn';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { onRanks } from './ranks.js';
import { adam, everything, net, train } from './saved-shards.js';

let directory = '';
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'shardweave-shards-'));
});
afterEach(async () => {
  await rm(directory, { recursive: true, force: true });
});

async function save(prefix = '') {
  const [whole] = await onRanks(2, async (rank) => {
    const model = net(rank);
    const optimizer = adam(model);
    await train(model, optimizer, { rank, steps: [0] });
    await saveShards(model, shardDirectory(directory), { optimizer, prefix, maxFileBytes: 4096 });
    return everything(model, optimizer);
  });
  return whole!;
}

it('what two ranks wrote, three read; nothing but whole files is left', async () => {
  const whole = await save('step-1/');
  const names = (await readdir(join(directory, 'step-1'))).sort();
  expect(names[0]).toBe('index.json');
  expect(names.length).toBeGreaterThan(6);
  for (const name of names.slice(1)) {
    expect(name).toMatch(/^rank-[01]-of-2\.\d+\.safetensors$/);
    const file = await readFile(join(directory, 'step-1', name));
    expect(readSafetensors(new Uint8Array(file)).tensors.size).toBeGreaterThan(0);
  }
  const perRank = await onRanks(3, async (rank) => {
    const model = net(rank);
    const optimizer = adam(model);
    await loadShards(model, shardDirectory(directory), { optimizer, prefix: 'step-1/' });
    return everything(model, optimizer);
  });
  expect(perRank[0]).toEqual(whole);
});

it('no directory is no save, and a file that is cut off is told', async () => {
  await onRanks(1, async (rank) => {
    const missing = shardDirectory(join(directory, 'nothing'));
    await expect(loadShards(net(rank), missing)).rejects.toThrow("expected 'index.json'");
  });
  await save();
  await truncate(join(directory, 'rank-1-of-2.0.safetensors'), 100);
  await onRanks(1, async (rank) => {
    const loading = loadShards(net(rank), shardDirectory(directory));
    await expect(loading).rejects.toThrow('The file is cut off');
  });
});

it('keys do not lead out of it, and a failed write leaves no part', async () => {
  const files = shardDirectory(join(directory, 'inside'));
  for (const key of ['../outside', '..', '.', '']) {
    await expect(files.write(key, new Uint8Array(1))).rejects.toBeInstanceOf(FsdpStateDictError);
    await expect(files.byteLength(key)).rejects.toBeInstanceOf(FsdpStateDictError);
  }
  await writeFile(join(directory, 'file'), 'x');
  await expect(shardDirectory(directory).write('file/below', new Uint8Array(1))).rejects.toThrow();
  expect(await readdir(directory)).toEqual(['file']);
});
