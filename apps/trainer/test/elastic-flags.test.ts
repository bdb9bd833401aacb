// What --elastic sets of other flags, and what a job whose ranks change can't have.

import { hash } from 'node:crypto';
import { utimesSync, writeFileSync } from 'node:fs';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { pauseAfter } from '../src/commands/join.js';
import { askToLeave, noteJoined } from '../src/commands/joined.js';
import { resolveConfig } from '../src/config/resolve-config.js';
import { runWarnings } from '../src/config/run-warnings.js';
import { UsageError } from '../src/errors.js';
import { aboutOf, readAbout } from '../src/launch/elastic-about.js';
import { membersText } from '../src/output/elastic-changes.js';
import { parseFlags } from './support/parse-flags.js';
import { tinyFlags } from './support/tiny-run.js';

const flagsOf = (line: string) => parseFlags(line.split(' ').filter(Boolean), () => {});
const runOf = (line: string) => resolveConfig(flagsOf(line), { cores: 2 });

describe('--elastic', () => {
  it.each([
    [
      '--strategy ddp --out a',
      { minRanks: 1, maxRanks: 8, gradientGroups: 8, transport: 'ws', saveEvery: { steps: 100 } },
    ],
    ['--strategy ddp --batch 4', { maxRanks: 4, gradientGroups: 4, saveEvery: undefined }],
    ['--strategy ddp --max-ranks 12', { maxRanks: 12, gradientGroups: 12, ranks: 2 }],
    ['--strategy ddp --gradient-groups 4 --min-ranks 2', { minRanks: 2, maxRanks: 4 }],
    ['--strategy ddp --transport shm', { transport: 'shm', maxRanks: 8 }],
    ['--strategy fsdp --out a', { transport: 'ws', saveEvery: { steps: 100 } }],
    ['--lora-rank 2 --model MODEL', { transport: 'ws', maxRanks: 8, saveEvery: undefined }],
    ['--lora-rank 2 --cpu-offload --out a', { transport: 'ws', saveEvery: { steps: 100 } }],
    ['--strategy fsdp --out a --transport shm', { transport: 'shm', gradientGroups: 8 }],
  ])('sets what %s leaves open', async (line, set) => {
    const folder = newFolder();
    tinyFlags(folder);
    writeFileSync(join(folder, 'model.safetensors'), ''); // it is there, and is not read yet
    const flags = line.replace('MODEL', `${folder} --seq 8`);
    expect(await runOf(`--elastic ${flags}`)).toMatchObject(set);
  });

  it('says what it has set', async () => {
    const flags = flagsOf('--elastic --strategy ddp --out a');
    expect(runWarnings(flags, await resolveConfig(flags))).toEqual([
      '--elastic sets --gradient-groups 8, --products wasm, --save-every 100: whoever computes a step comes to the same bits.',
    ]);
    const all = flagsOf('--elastic --strategy ddp --gradient-groups 8 --products wasm');
    expect(runWarnings(all, await resolveConfig(all))).toEqual([]);
  });

  it.each([
    ['--strategy single', '--elastic and --strategy single: it has one rank. Use --strategy ddp'],
    ['--strategy offload', '--elastic and --strategy offload: it has one rank.'],
    ['--strategy ddp --transport mpi', '--elastic and --transport mpi: MPI ends all ranks with'],
    [
      '--strategy ddp --transport shm --listen 10.0.0.1',
      '--elastic and --listen with --transport shm: all ranks are threads of the command',
    ],
    ['', '--elastic and --strategy fsdp: each rank has a part of the state that nobody else has'],
    ['--strategy ddp --task embed --data a.jsonl', '--elastic and --task embed: its ranks can not'],
    ['--strategy ddp --time-limit 5m', '--elastic and --time-limit: it is for a job whose ranks'],
    ['--strategy ddp --trace a', '--elastic and --trace: it is for a job whose ranks are the same'],
    ['--strategy ddp --check', '--elastic and --check: it is for a job whose ranks are the same'],
    [
      '--strategy ddp --listen 0.0.0.0:5',
      '--listen 0.0.0.0:5: expected the address by which other',
    ],
    ['--lora-rank 2', '--elastic and adapters with --strategy fsdp: where ranks change each reads'],
    ['--lora-rank 2 --time-limit 5m', '--elastic and --time-limit: it is for a job whose ranks'],
    ['--lora-rank 2 --task dpo --data a', '--elastic and --strategy fsdp: each rank has a part of'],
    ['--out a --max-ranks 3', '--elastic and --max-ranks with --strategy fsdp: nobody joins such'],
    ['--out a --listen 10.0.0.1', '--elastic and --listen with --strategy fsdp: nobody joins such'],
    ['--strategy ddp --max-ranks 9 --gradient-groups 8', '--max-ranks 9 of --gradient-groups 8:'],
    ['--strategy ddp --min-ranks 9', '--min-ranks 9, --ranks left out and --max-ranks 8: expected'],
    ['--strategy ddp --ranks 3 --min-ranks 4', '--min-ranks 4, --ranks 3 and --max-ranks 8: expe'],
    ['--strategy ddp --ranks 5 --max-ranks 4', '--min-ranks 1, --ranks 5 and --max-ranks 4: expe'],
  ])('refuses %s', async (line, says) => {
    const refused = runOf(`--elastic ${line}`);
    await expect(refused).rejects.toThrow(UsageError);
    await expect(refused).rejects.toThrow(says);
  });
});

it('join comes again at once, and later where it was turned away again', () => {
  expect([0, 1, 2, 3, 9].map(pauseAfter)).toEqual([0, 10, 20, 40, 300]);
});

describe('what a job tells of itself', () => {
  const dataOf = (count: number) =>
    Array.from({ length: count }, (_, i) => `/data/${hash('sha256', `${i}`)}.txt`).join();

  it('is its flags, with hundreds of files of data', async () => {
    const config = { ...(await runOf('--strategy ddp')), data: dataOf(400) };
    const tokens = { train: [], valid: undefined };
    expect(readAbout(aboutOf({ ...config, tokens }))).toEqual(JSON.parse(JSON.stringify(config)));
  });

  it('is refused where another version tells it', () => {
    expect(() => readAbout('{"model":"nano"}')).toThrow(/Install the version that it has\.$/);
  });

  it('is refused where it names more than can be told', async () => {
    const config = { ...(await runOf('--strategy ddp')), data: dataOf(2000) };
    expect(() => aboutOf({ ...config, tokens: { train: [], valid: undefined } })).toThrow(
      /^--data: the flags of a job with --elastic travel to those who join, in at most 32768 bytes/,
    );
  });
});

describe('leave', () => {
  it('asks the ranks of one job, or all, and no command that was killed', async () => {
    const env = { SHARDWEAVE_CACHE: newFolder() };
    expect(await askToLeave(undefined, env)).toEqual([]);
    const asked: string[] = [];
    const note = (address: string) => noteJoined(address, env, () => void asked.push(address));
    await using _first = await note('a:1');
    await using _second = await note('b:2');
    await using killed = await note('a:1');
    const directory = join(env.SHARDWEAVE_CACHE, 'joined');
    expect(await readdir(directory)).toHaveLength(3);
    await killed[Symbol.asyncDispose]();
    expect(await askToLeave('a:1', env)).toEqual(['a:1']);
    await expect.poll(() => asked).toEqual(['a:1']);
    const dead = join(directory, 'dead.json');
    writeFileSync(dead, JSON.stringify({ address: 'c:3' }));
    utimesSync(dead, 0, 0);
    expect(await askToLeave(undefined, env)).toEqual(['b:2']);
    expect(await readdir(directory)).toEqual([]);
  });
});

it.each([
  [
    { ranks: 1, step: 3, came: 0, left: 1, lost: 0, reasons: [] },
    '1 rank goes on behind step 3: 1 left',
  ],
  [
    { ranks: 2, step: 9, came: 1, left: 0, lost: 2, reasons: ['a', 'b'] },
    '2 ranks go on behind step 9: 1 came, 2 lost (a; b)',
  ],
])('a change of ranks %# is told in a line', (change, text) => {
  expect(membersText(change)).toBe(text);
});
