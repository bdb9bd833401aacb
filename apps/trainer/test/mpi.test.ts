// Ranks under mpirun have the same numbers as ranks in one process, and report a failure once.

import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { constants, hostname } from 'node:os';
import { join } from 'node:path';
import { beforeAll, describe, expect, it, vi } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import type { StepMetrics } from '../src/rank/events.js';
import { buildCommand } from './support/build-command.js';
import { childrenOf, startRun } from './support/killed-run.js';
import { leftRun, SAVED } from './support/left-run.js';
import { ROOT, runFlags, shortCase } from './support/run-flags.js';
import { tinyFlags } from './support/tiny-run.js';

const hasMpirun = spawnSync('mpirun', ['--version']).error === undefined;
const problem = hasMpirun ? undefined : (process.env.SHARDWEAVE_NO_MPI ?? 'no mpirun was found');

const isLong = process.env.SHARDWEAVE_LONG === '1';
/** Longer than a busy machine takes for any of it. */
const LONG_MS = 50_000;

describe.skipIf(problem !== undefined)(
  `ranks under mpirun${problem ? ` (${problem})` : ''}`,
  () => {
    let script: string;
    beforeAll(async () => {
      script = await buildCommand();
    });

    /** Runs the command, which starts mpirun. */
    async function run(flags: readonly string[], folder = process.env.TMPDIR) {
      const child = spawn(process.execPath, [script, 'train', ...flags, '--transport', 'mpi'], {
        stdio: ['ignore', 'pipe', 'pipe'],
        // koffi is a dependency of a package in which the bundle does not lie.
        env: {
          ...process.env,
          TMPDIR: folder,
          NODE_PATH: `${ROOT}packages/collectives/node_modules`,
        },
      });
      let output = '';
      for (const stream of [child.stdout, child.stderr]) {
        stream.on('data', (chunk: Buffer) => {
          output += chunk.toString();
        });
      }
      const code = await new Promise<number | null>((resolve) => child.on('close', resolve));
      return { code, output };
    }

    it.each(isLong ? ['cosine-fp32', 'cosine-bf16'] : ['cosine-bf16'])(
      '%s: the bits of ranks in one process',
      async (name) => {
        const flags = [...shortCase(name), '--device', 'cpu', '--ranks', '3'];
        const rooted = flags.map((flag) => (flag.startsWith('tooling/') ? ROOT + flag : flag));
        const out = join(newFolder(), 'run');
        const { code, output } = await run([...rooted, '--quiet', '--out', out]);
        expect({ code, output }).toEqual({ code: 0, output: '' });
        const steps = readFileSync(join(out, 'metrics.jsonl'), 'utf8')
          .trim()
          .split('\n')
          .map((line) => JSON.parse(line) as StepMetrics);
        const memory = await runFlags(flags);
        expect(steps.map((step) => step.loss)).toEqual(memory.steps.map((step) => step.loss));
        const summary = JSON.parse(readFileSync(join(out, 'summary.json'), 'utf8')) as {
          readonly ranks: readonly { readonly bytesSent: number }[];
        };
        const sent = memory.reports.map((report) => report.bytesSent);
        expect(summary.ranks.map(({ bytesSent }) => bytesSent)).toEqual(sent);
      },
    );

    it('what is redirected is plain, though mpirun gives ranks a terminal of its own', async () => {
      const flags = ['--device', 'cpu', '--model', 'nano', '--steps', '1', '--seq', '16'];
      // A file where Open MPI's folder for all jobs would be made.
      const folder = newFolder();
      const others = `ompi.${hostname().split('.')[0]}.${process.getuid!()}`;
      writeFileSync(join(folder, others), '');
      const { code, output } = await run([...flags, '--ranks', '1'], folder);
      expect(code, output).toBe(0);
      expect(output).toMatch(/^model {3}nano/m);
      expect(output).not.toContain('\u001b');
      const left = readdirSync(folder).filter((name) => name.startsWith('shardweave-mpi'));
      expect(left).toEqual([]);
    });

    // command.test.ts has exit codes over other transports.
    it.runIf(isLong)('a failure is shown once, with its exit code', async () => {
      const flags = ['--device', 'cpu', '--ranks', '2', '--batch', '12', '--data', '/nowhere'];
      const { code, output } = await run(flags);
      expect(output.match(/^error: --data: \/nowhere is not there\./gm)).toHaveLength(1);
      expect(code).toBe(2);
    });

    describe('that the command has started', { timeout: 3 * LONG_MS }, () => {
      const root = newFolder();
      const flags = `${tinyFlags(root)} --ranks 2 --transport mpi --steps 100000 --quiet`;

      /** Starts the command, lets `act` end it, and waits until nothing of it is left. */
      async function expectEnd(
        more: string,
        act: (command: ChildProcess, mpirun: number) => Promise<void>,
      ) {
        const command = startRun(script, `${flags} ${more}`.split(' '));
        // The command has no other child.
        const mpirun = await vi.waitUntil(() => childrenOf(command.pid!)[0], { timeout: LONG_MS });
        try {
          await act(command, mpirun);
          await vi.waitUntil(() => !existsSync(`/proc/${mpirun}`), { timeout: LONG_MS });
        } finally {
          endProcess(mpirun);
        }
      }

      it('end by a Ctrl-C that comes before they are there', async () => {
        await expectEnd(`--out ${join(root, 'early')}`, async (command, mpirun) => {
          // From then on it passes signals on, of which ranks to come would see none.
          await vi.waitUntil(() => catches(mpirun, constants.signals.SIGUSR2), {
            timeout: LONG_MS,
          });
          const gone = once(command, 'close', { signal: AbortSignal.timeout(LONG_MS) });
          command.kill('SIGINT');
          expect(await gone).toEqual([130, null]);
        });
      });

      it('save where the command is killed, though they print nothing', async () => {
        const out = join(root, 'killed');
        await expectEnd(`--save-every 100000 --out ${out}`, async (command) => {
          await untilAtWork(out);
          command.kill('SIGKILL');
        });
        expect(leftRun(out)).toEqual(SAVED);
      });

      // They are ended by the same signal where the command is killed, as above.
      it.runIf(isLong)('write how they ended where one of them is killed', async () => {
        const out = join(root, 'lost');
        await expectEnd(`--out ${out}`, async (_, mpirun) => {
          await untilAtWork(out);
          process.kill(childrenOf(mpirun).at(-1)!, 'SIGKILL');
        });
        const last = readFileSync(join(out, 'events.jsonl'), 'utf8').trim().split('\n').at(-1)!;
        expect(JSON.parse(last)).toMatchObject({ type: 'runEnd', end: 'stopped' });
      });
    });
  },
);

/** Waits for the first step. */
async function untilAtWork(out: string): Promise<void> {
  const metrics = join(out, 'metrics.jsonl');
  const isAtWork = () => existsSync(metrics) && statSync(metrics).size > 0;
  await vi.waitUntil(isAtWork, { timeout: LONG_MS });
}

/** Whether a process has a handler of a signal. */
function catches(pid: number, signal: number): boolean {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8');
  const caught = BigInt(`0x${/^SigCgt:\s+(\w+)$/m.exec(status)![1]}`);
  return ((caught >> BigInt(signal - 1)) & 1n) === 1n;
}

/** Ends a process that a failed test has left. */
function endProcess(pid: number): void {
  try {
    process.kill(pid, 'SIGTERM');
  } catch {
    // It is gone.
  }
}
