// Ranks under mpirun have the same numbers as ranks in one process, and report a failure once.

import { spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import type { StepMetrics } from '../src/rank/events.js';
import { buildCommand } from './support/build-command.js';
import { ROOT, runFlags, shortCase } from './support/run-flags.js';

const hasMpirun = spawnSync('mpirun', ['--version']).error === undefined;
const problem = hasMpirun ? undefined : (process.env.SHARDWEAVE_NO_MPI ?? 'no mpirun was found');

describe.skipIf(problem !== undefined)(
  `ranks under mpirun${problem ? ` (${problem})` : ''}`,
  () => {
    let script: string;
    beforeAll(async () => {
      script = await buildCommand('mpi-test');
    });

    /** Runs the command, which starts mpirun. */
    async function run(flags: readonly string[]) {
      const child = spawn(process.execPath, [script, 'train', ...flags, '--transport', 'mpi'], {
        stdio: ['ignore', 'pipe', 'pipe'],
        // koffi is a dependency of a package in which the bundle does not lie.
        env: { ...process.env, NODE_PATH: `${ROOT}packages/collectives/node_modules` },
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

    it.each(['cosine-fp32', 'cosine-bf16'])(
      '%s: the bits of ranks in one process',
      async (name) => {
        const flags = [...shortCase(name), '--device', 'cpu', '--ranks', '3'];
        const rooted = flags.map((flag) => (flag.startsWith('tooling/') ? ROOT + flag : flag));
        const out = join(mkdtempSync(join(tmpdir(), 'trainer-mpi-')), 'run');
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
      const { code, output } = await run([...flags, '--ranks', '1']);
      expect(code).toBe(0);
      expect(output).toMatch(/^model {3}nano/m);
      expect(output).not.toContain('\u001b');
    });

    it('a failure is shown once, with its exit code', async () => {
      const { code, output } = await run(['--ranks', '3', '--batch', '12', '--data', '/nowhere']);
      expect(output.match(/^error: --data: \/nowhere is not there\./gm)).toHaveLength(1);
      expect(code).toBe(2);
    });
  },
);
