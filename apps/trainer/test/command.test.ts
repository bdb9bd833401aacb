// The command runs as a user runs it, with real processes and sockets, but where nothing but an
// exit code and a sentence is tested. The tests check exit codes, processes and signals.

import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  closeSync,
  constants,
  existsSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { buildCommand } from './support/build-command.js';
import { jsonlFile } from './support/jsonl-data.js';
import { childrenOf, isAlive } from './support/killed-run.js';
import { lettersDirectory } from './support/letters-tokenizer.js';
import { runCli } from './support/run-cli.js';
import { ROOT, runFlags, shortCase } from './support/run-flags.js';

let script: string;
beforeAll(async () => {
  script = await buildCommand();
});

/**
 * What a test waits for comes within a second or two. Where it never comes, the test ends after
 * this time.
 */
const LIMIT_MS = 50_000;
const isLong = process.env.SHARDWEAVE_LONG === '1';
const MODEL = `${ROOT}tooling/reference/data/tiny`;
const TEXT = `${MODEL}/text.txt`;
const QUICK = [
  '--device',
  'cpu',
  '--model',
  'nano',
  '--data',
  TEXT,
  '--seq',
  '16',
  '--batch',
  '12',
];

/** Runs the command with a standard output that takes nothing. */
async function printedToFullDisk(args: readonly string[]) {
  const full = openSync('/dev/full', 'w');
  const child = spawn(process.execPath, [script, ...args], { stdio: ['ignore', full, 'pipe'] });
  closeSync(full);
  let err = '';
  child.stderr!.on('data', (chunk: Buffer) => (err += chunk.toString()));
  const [code] = (await once(child, 'close')) as [number];
  return { code, err };
}

class Running {
  readonly child: ChildProcess;
  out = '';
  err = '';
  constructor(flags: readonly string[]) {
    this.child = spawn(process.execPath, [script, 'train', ...flags], {
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    this.child.stdout!.on('data', (chunk: Buffer) => (this.out += chunk.toString()));
    this.child.stderr!.on('data', (chunk: Buffer) => (this.err += chunk.toString()));
  }

  /** Returns the process ids of the ranks, in rank order. */
  ranks(): readonly number[] {
    return childrenOf(this.child.pid!);
  }

  async until(text: RegExp): Promise<void> {
    await expect.poll(() => this.out, { timeout: LIMIT_MS, interval: 20 }).toMatch(text);
  }

  async exit(): Promise<number | null> {
    if (this.child.exitCode === null && this.child.signalCode === null) {
      await once(this.child, 'exit');
    }
    return this.child.exitCode;
  }
}

describe('exit codes', () => {
  it.each([
    ['--help', 0, /Presets of --model/, /^$/],
    ['--bogus', 2, /^$/, /^error: unknown option '--bogus'\. See --help\.\n$/],
    ['--seq 9999', 2, /^$/, /^error: --seq 9999 is beyond .*\n$/],
    ['--data /nowhere --transport ws', 2, /^$/, /^error: --data: \/nowhere is not there\. .*\n$/],
  ])('the exit code of %s says how it ended', async (flags, code, out, err) => {
    const run = new Running(['--device', 'cpu', ...flags.split(' ')]);
    expect(await run.exit()).toBe(code);
    expect(run.out).toMatch(out);
    expect(run.err).toMatch(err);
  });

  it('0 after a run, which shows header, steps and a sample, plain where redirected', async () => {
    const run = new Running([...QUICK, '--steps', '3']);
    expect(await run.exit()).toBe(0);
    expect(run.err).toBe('');
    expect(run.out).toMatch(/^model {3}nano: 2 layers/);
    expect(run.out.match(/^step \d\/3 \|/gm)).toHaveLength(3);
    expect(run.out).not.toContain('\u001b');
  });

  it('0 on whatever device there is, whose driver keeps off the terminal while it is looked for', async () => {
    const quick = QUICK.slice(2); // These flags lack --device.
    const run = new Running([...quick, '--steps', '1']);
    expect(await run.exit()).toBe(0);
    const isGpu = /^device {2}webgpu/m.test(run.out);
    if (!isGpu) {
      expect(run.err).toBe('');
    }
    expect(run.out).toMatch(/^device {2}(cpu|webgpu) \(.+\)$/m);
  });

  it('2 before the first step where --out or --trace cannot be written', async () => {
    // A folder cannot be made inside a file on any system. With a path in /proc Node's recursive
    // mkdir never returned.
    const path = join(script, 'sub');
    for (const flag of ['--out', '--trace', ...(existsSync('/proc') ? ['/proc'] : [])]) {
      const where = flag === '/proc' ? ['--out', '/proc/nowhere'] : [flag, path];
      const run = await runCli(['train', ...QUICK, '--steps', '1', ...where]);
      expect(run.code).toBe(2);
      expect(run.err).toMatch(/^error: --(out|trace): .* can't be written \(.*\)\..*\n$/);
      expect(run.out).not.toContain('step');
    }
  });

  it('2 for a text that is not UTF-8', async () => {
    const path = join(mkdtempSync(join(tmpdir(), 'trainer-binary-')), 'data.bin');
    writeFileSync(
      path,
      Uint8Array.from({ length: 4096 }, (_, i) => (i * 37) % 256),
    );
    const run = await runCli(['train', ...QUICK, '--steps', '1', '--data', path]);
    expect(run.code).toBe(2);
    expect(run.err).toContain('is not text in UTF-8');
  });

  it('1 when the loss is not a number, saying what to change', async () => {
    const wild = ['--steps', '12', '--lr', '1e9', '--schedule', 'constant'];
    const run = await runCli(['train', ...QUICK, ...wild]);
    expect(run.code).toBe(1);
    expect(run.err).toMatch(/The loss is not a number at step \d+: .* smaller --lr/);
  });

  it('141, without a word, when the reader of its output has seen enough', async () => {
    const run = new Running([...QUICK, '--steps', '1000000']);
    await run.until(/^step +1\//m);
    run.child.stdout!.destroy();
    expect(await run.exit()).toBe(141);
    expect(run.err).toBe('');
  });

  it.runIf(existsSync('/dev/full'))(
    '0, with a warning, when what it prints has no room',
    async () => {
      const flags = ['--device', 'cpu', '--model', 'nano', '--data', TEXT, '--steps', '1'];
      const { code, err } = await printedToFullDisk(['train', ...flags]);
      expect(code).toBe(0);
      expect(err).toBe(
        "warning: what the command prints can't be written (no space left on device); the run goes on without.\n",
      );
    },
  );

  it.runIf(existsSync('/dev/full')).each(['--help', 'inspect'])(
    '1 when the last that %s prints has no room',
    async (name) => {
      const { code, err } = await printedToFullDisk(name === 'inspect' ? [name, MODEL] : [name]);
      expect(code).toBe(1);
      expect(err).toBe(
        "error: what the command prints can't be written (no space left on device).\n",
      );
    },
  );

  it('143 after SIGTERM', async () => {
    const run = new Running([...QUICK, '--steps', '1000000']);
    await run.until(/^step +1\//m);
    run.child.kill('SIGTERM');
    expect(await run.exit()).toBe(143);
    expect(run.err).toBe('');
    expect(run.out).toMatch(/\nSIGTERM: ending\. .*\nStopped by SIGTERM after step \d+\. /);
  });

  it('0 after a quiet run, which shows nothing, of more ranks than ten in a process', async () => {
    // Node itself warns of more than ten listeners.
    const run = new Running([
      ...QUICK,
      '--batch',
      '11',
      '--steps',
      '1',
      '--ranks',
      '11',
      '--quiet',
    ]);
    expect(await run.exit()).toBe(0);
    expect(run.out + run.err).toBe('');
  });
});

describe('ranks as processes and as threads', () => {
  it.each([
    ['cosine-bf16', 'fsdp', isLong ? ['ws', 'shm'] : ['ws']],
    ...(isLong
      ? ([
          ['cosine-fp32', 'ddp', ['ws', 'shm']],
          ['cosine-fp32', 'fsdp', ['ws', 'shm']],
        ] as const)
      : []),
  ] as const)('%s of %s: the bits of ranks in one thread', async (name, strategy, transports) => {
    const where = ['--device', 'cpu', '--ranks', '3', '--strategy', strategy];
    const flags = [...shortCase(name), ...where];
    const memory = await runFlags(flags);
    for (const transport of transports) {
      const apart = await runFlags([...flags, '--transport', transport], { entry: script });
      expect(apart.steps.map((step) => step.loss)).toEqual(memory.steps.map((step) => step.loss));
      expect(apart.reports).toEqual(memory.reports);
    }
  });

  it('killing the first rank ends the job with its number, and the line that goes on', async () => {
    const out = join(mkdtempSync(join(tmpdir(), 'trainer-')), 'run');
    const flags = `--transport ws --ranks 2 --steps 1000000 --save-every 1 --out ${out}`;
    const run = new Running([...QUICK, ...flags.split(' ')]);
    await run.until(/^step +3\//m);
    const pids = run.ranks();
    expect(pids).toHaveLength(2);
    process.kill(pids[0]!, 'SIGKILL');
    expect(await run.exit()).toBe(1);
    expect(run.err).toMatch(/^error: rank 0 of 2 was killed by SIGKILL after step \d+/);
    expect(run.out).toMatch(
      /\nGo on from its save of step \d+ with: (npx )?shardweave train .* --resume auto\n$/,
    );
    expect(pids.map(isAlive)).toEqual([false, false]);
  });

  // In the short run launch.test.ts has ranks that are killed as they start.
  it.runIf(isLong)('killing a rank before the first step ends the job, too', async () => {
    // No rank gets past weights that have no end.
    const model = lettersDirectory({ isBare: true });
    const weights = join(model, 'model.safetensors');
    execFileSync('mkfifo', [weights]);
    const flags = ['--transport', 'ws', '--ranks', '2', '--steps', '1000000', '--model', model];
    const run = new Running([...QUICK, ...flags]);
    await expect.poll(() => run.ranks().length, { timeout: LIMIT_MS, interval: 20 }).toBe(2);
    const pids = run.ranks();
    process.kill(pids[1]!, 'SIGKILL');
    await expect.poll(() => isAlive(pids[1]!), { timeout: LIMIT_MS, interval: 5 }).toBe(false);
    // Opened for reading and writing, the pipe blocks on neither. Closing it ends the weights for
    // those who read.
    closeSync(openSync(weights, constants.O_RDWR));
    const code = await run.exit();
    expect(run.err).toMatch(/^error: rank 1 of 2 was killed by SIGKILL before the first step/);
    expect(code).toBe(1);
    expect(pids.map(isAlive)).toEqual([false, false]);
  });

  // In the short run launch.test.ts has it.
  it.runIf(isLong)('killing the command ends the ranks', async () => {
    const run = new Running([...QUICK, '--transport', 'ws', '--ranks', '2', '--steps', '1000000']);
    await run.until(/^step +2\//m);
    const pids = run.ranks();
    expect(pids).toHaveLength(2);
    run.child.kill('SIGKILL');
    await expect.poll(() => pids.some(isAlive), { timeout: LIMIT_MS }).toBe(false);
  });
});

describe('documents', () => {
  const LINES = Array.from({ length: 3000 }, (_, i) => ({
    prompt: `${i} and one `,
    completion: `${i}!`.repeat(8),
  }));

  it('are made tokens in a thread once, for ranks that are processes', async () => {
    const { file, model } = jsonlFile(LINES);
    const cache = mkdtempSync(join(tmpdir(), 'cache-'));
    const flags = `--device cpu --model ${model} --data ${file} --valid-fraction 0.01 --cache ${cache} --seq 24 --batch 4 --steps 2 --lr 0.01`;
    const out = join(cache, 'run');
    const run = new Running([...flags.split(' '), '--transport', 'ws', '--out', out]);
    expect(await run.exit()).toBe(0);
    expect(run.err).toBe('');
    expect(run.out).toMatch(
      /^data .*data\.jsonl: 1\d\dk tokens in 3\.0k documents, 3\.0k of them longer than a row and cut in 7\.9k pieces \(model\), shuffle$/m,
    );
    expect(run.out).toMatch(
      /^valid {3}0\.01 of the data: .* in 30 documents, .* in 76 pieces, every 100 steps$/m,
    );
    const [, last] = readFileSync(join(out, 'metrics.jsonl'), 'utf8').trim().split('\n');
    const { loss, validLoss } = JSON.parse(last!) as Record<string, number>;
    expect(run.out).toMatch(
      new RegExp(
        `^step 2/2 \\| loss +${loss!.toFixed(4)} \\| valid +${validLoss!.toFixed(4)} \\|`,
        'm',
      ),
    );
    expect(JSON.parse(readFileSync(join(out, 'summary.json'), 'utf8'))).toMatchObject({
      validLoss,
    });
    expect(existsSync(join(out, 'model', 'tokenizer.json'))).toBe(true);
    // The tokens exist now. Ranks in this process find them and train on them alike.
    const here = await runFlags([...flags.split(' '), '--ranks', '2']);
    expect(here.steps.map((step) => step.loss).at(-1)).toBe(loss);
    expect(readdirSync(join(cache, 'tokens'))).toHaveLength(1);
  });

  it('leave nothing behind that were not done at Ctrl-C', async () => {
    const { file, model } = jsonlFile(Array.from({ length: 20 }, () => LINES).flat());
    const cache = mkdtempSync(join(tmpdir(), 'cache-'));
    const run = new Running([
      '--device',
      'cpu',
      '--model',
      model,
      '--data',
      file,
      '--cache',
      cache,
    ]);
    const found = () => readdirSync(cache, { recursive: true, withFileTypes: true });
    const hasPart = () => found().some(({ name }) => name.endsWith('.part'));
    await expect.poll(hasPart, { timeout: LIMIT_MS, interval: 20 }).toBe(true);
    run.child.kill('SIGINT');
    expect(await run.exit()).toBe(130);
    expect(hasPart()).toBe(false);
    expect(found().filter((entry) => entry.isFile())).toEqual([]);
  });
});

it('Ctrl-C ends ranks in one process cleanly with 130, with a save that nobody asked for before', async () => {
  const out = join(mkdtempSync(join(tmpdir(), 'trainer-')), 'run');
  const flags = ['--transport', 'memory', '--ranks', '2', '--steps', '1000000', '--out', out];
  const run = new Running([...QUICK, ...flags]);
  await run.until(/^step +3\//m);
  run.child.kill('SIGINT');
  expect(await run.exit()).toBe(130);
  expect(run.err).toBe('');
  const says = /Stopped by Ctrl-C after step (\d+), saved in \S+\.\nGo on with: .*--resume auto\n$/;
  const [, step] = says.exec(run.out) ?? [];
  expect(readdirSync(join(out, 'saves'))).toEqual([`step-${step?.padStart(6, '0')}`]);
});
