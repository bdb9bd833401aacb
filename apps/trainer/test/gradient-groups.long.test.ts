// A run in eight groups of rows is one run on 1 to 8 ranks: over memory by every strategy that
// takes groups, in every precision; over threads and processes; through a resume; with adapters and
// packed documents; and on one WebGPU adapter.

import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { buildCommand } from './support/build-command.js';
import { ROOT } from './support/run-flags.js';
import { runLine, tinyFlags } from './support/tiny-run.js';
import { whyNoWebGpu } from './support/webgpu-adapter.js';

const STEPS = '--gradient-groups 8 --schedule constant --steps 20';
const PRECISIONS = ['fp32', 'bf16', 'fp16'] as const;
const root = newFolder();
const NO_WEBGPU = await whyNoWebGpu();
const hasMpirun = spawnSync('mpirun', ['--version']).error === undefined;
const NO_MPI = hasMpirun ? undefined : (process.env.SHARDWEAVE_NO_MPI ?? 'no mpirun was found');

const hashOf = (out: string, file = 'model/model.safetensors') =>
  createHash('sha256')
    .update(readFileSync(join(out, file)))
    .digest('hex');

/** The hash of what a run in this process leaves. */
async function hashOfRun(flags: string, file?: string): Promise<string> {
  const out = newFolder();
  await runLine(`${tinyFlags(root)} ${STEPS} ${flags} --out ${out}`);
  return hashOf(out, file);
}

/** The same of a run whose ranks are threads or processes. */
async function hashOfCommand(flags: string): Promise<string> {
  const out = newFolder();
  const line = `${tinyFlags(root)} ${STEPS} ${flags} --quiet --out ${out}`;
  const args = [await buildCommand(), 'train', ...line.split(' ')];
  // koffi is a dependency of a package in which the bundle does not lie.
  const env = { ...process.env, NODE_PATH: `${ROOT}packages/collectives/node_modules` };
  const { status, stderr } = spawnSync(process.execPath, args, { encoding: 'utf8', env });
  expect([status, stderr]).toEqual([0, '']);
  return hashOf(out);
}

/** The hashes of a run by all of these ways, of which there is to be one. */
async function hashesOf(ways: readonly string[], flags: string, file?: string): Promise<string[]> {
  const hashes = new Set<string>();
  for (const way of ways) {
    hashes.add(await hashOfRun(`${way} ${flags}`, file));
  }
  return [...hashes];
}

const ways = ['ddp', 'fsdp'].flatMap((strategy) =>
  [1, 2, 3, 4, 5, 6, 7, 8].map((ranks) => `--strategy ${strategy} --ranks ${ranks}`),
);

describe('20 steps in 8 groups have one hash', () => {
  it.each(PRECISIONS)(
    'ddp and fsdp have it on 1 to 8 ranks, %s',
    async (precision) => {
      expect(await hashesOf(ways, `--precision ${precision}`)).toHaveLength(1);
    },
    600_000,
  );

  it('threads and processes have it, as ranks in memory', async () => {
    const hashes = new Set([await hashOfRun('--strategy single')]);
    for (const way of ['ddp --ranks 3', 'fsdp --ranks 3', 'fsdp --ranks 8']) {
      for (const transport of ['shm', 'ws']) {
        hashes.add(await hashOfCommand(`--strategy ${way} --transport ${transport}`));
      }
    }
    expect([...hashes]).toHaveLength(1);
  }, 600_000);

  it.skipIf(NO_MPI !== undefined)(
    `ranks under mpirun have it${NO_MPI ? ` (${NO_MPI})` : ''}`,
    async () => {
      const hash = await hashOfRun('--strategy single');
      expect(await hashOfCommand('--strategy fsdp --ranks 3 --transport mpi')).toBe(hash);
    },
    600_000,
  );

  it.each(PRECISIONS)(
    'saves that other numbers of ranks go on from lead to it, %s',
    async (precision) => {
      const whole = await hashOfRun(`--strategy fsdp --ranks 2 --precision ${precision}`);
      const out = newFolder();
      const line = `${tinyFlags(root)} ${STEPS} --strategy fsdp --precision ${precision} --out ${out}`;
      await runLine(`${line} --ranks 5 --steps 7 --save-every 7`);
      await runLine(`${line} --ranks 3 --steps 13 --save-every 6 --resume auto`);
      await runLine(`${line} --ranks 8 --resume auto`);
      expect(hashOf(out)).toBe(whole);
    },
    600_000,
  );

  it('adapters beside a base in bf16 have it', async () => {
    const few = ways.filter((way) => /[1358]$/.test(way));
    const flags = '--precision bf16 --lora-rank 2 --lora-dropout 0.1';
    const base = newFolder();
    await runLine(`${tinyFlags(root)} --strategy single --steps 1 --batch 4 --out ${base}`);
    const data = tinyFlags(root).replace(/--model \S+/, `--model ${join(base, 'model')}`);
    const hashes = new Set<string>();
    for (const way of few) {
      const out = newFolder();
      await runLine(`${data} ${STEPS} ${way} ${flags} --out ${out}`);
      hashes.add(hashOf(out, 'adapter/adapter_model.safetensors'));
    }
    expect([...hashes]).toHaveLength(1);
  }, 600_000);

  it('documents that are packed into rows lead to it', async () => {
    const lines = Array.from({ length: 90 }, (_, i) => ({ text: 'abcdefgh'.slice(i % 7) }));
    const data = join(root, 'documents.jsonl');
    writeFileSync(data, lines.map((line) => `${JSON.stringify(line)}\n`).join(''));
    const line = tinyFlags(root).replace(/--data \S+/, `--data ${data}`);
    const hashes = new Set<string>();
    for (const way of ways.filter((name) => /[1358]$/.test(name))) {
      const out = newFolder();
      await runLine(`${line} ${STEPS} ${way} --out ${out}`);
      hashes.add(hashOf(out));
    }
    expect([...hashes]).toHaveLength(1);
  }, 600_000);

  it.skipIf(NO_WEBGPU !== undefined)(
    'ranks on one WebGPU adapter have it',
    async () => {
      const few = ways.filter((way) => /[138]$/.test(way));
      expect(await hashesOf(few, '--device webgpu --steps 4')).toHaveLength(1);
    },
    600_000,
  );
});
