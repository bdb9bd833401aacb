// These tests run the examples with several processes: all-reduce.mjs with the environment that
// each launcher gives its processes, under mpirun itself and on several hosts, and two-machines.mjs
// on two hosts.

import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { printedLosses } from '../../../tooling/test-kit/printed-losses.js';
import { bundleProgram } from './support/bundle-program.js';
import { freePort } from './support/free-port.js';
import { createLan, lanProblem } from './support/netns.js';
import { programResult } from './support/run-program.js';

const LIMIT_MS = 40_000;
const folder = newFolder();
const program = join(folder, 'all-reduce.mjs');
const training = join(folder, 'two-machines.mjs');
const secretFile = join(folder, 'secret');
const running = new Set<ChildProcess>();

beforeAll(async () => {
  writeFileSync(secretFile, 'made by the launcher\n');
  const examples = new URL('../../../examples/', import.meta.url);
  await Promise.all([
    bundleProgram(new URL('all-reduce.mjs', examples), program),
    bundleProgram(new URL('two-machines.mjs', examples), training),
  ]);
});

afterAll(() => {
  for (const child of running) {
    child.kill('SIGKILL');
  }
});

type Variables = Readonly<Record<string, string>>;

/** Returns the environment of a process to which a launcher passes on only this part of its own. */
function environment(own: Variables): Variables {
  const { PATH = '' } = process.env;
  return { PATH, SHARDWEAVE_SECRET_FILE: secretFile, ...own };
}

async function outputOf(child: ChildProcess): Promise<string> {
  running.add(child);
  const { exitCode, stdout, stderr } = await programResult(child, LIMIT_MS);
  running.delete(child);
  expect({ exitCode, stderr }).toEqual({ exitCode: 0, stderr: '' });
  return stdout;
}

/** Starts a process for each environment, and resolves with the output of each. */
function runAll(environments: readonly Variables[]): Promise<readonly string[]> {
  return Promise.all(
    environments.map((own) =>
      outputOf(spawn(process.execPath, [program], { env: environment(own) })),
    ),
  );
}

const ranks = ['0', '1'];

/** The environment that each launcher gives to `rank`. `port` is a free one. */
const LAUNCHERS: Readonly<Record<string, (rank: string, port: string) => Variables>> = {
  torchrun: (rank, port) => ({
    RANK: rank,
    LOCAL_RANK: rank,
    GROUP_RANK: '0',
    WORLD_SIZE: '2',
    LOCAL_WORLD_SIZE: '2',
    MASTER_ADDR: 'localhost',
    MASTER_PORT: port,
    TORCHELASTIC_RESTART_COUNT: '2',
    TORCHELASTIC_RUN_ID: 'none',
    TORCHELASTIC_USE_AGENT_STORE: 'False',
  }),
  openmpi: (rank, port) => ({
    OMPI_COMM_WORLD_RANK: rank,
    OMPI_COMM_WORLD_SIZE: '2',
    OMPI_COMM_WORLD_LOCAL_RANK: rank,
    OMPI_COMM_WORLD_LOCAL_SIZE: '2',
    PMIX_RANK: rank,
    PMIX_NAMESPACE: `job-${port}`,
    SHARDWEAVE_TRANSPORT: 'ws',
  }),
  slurm: (rank, port) => ({
    SLURM_JOB_ID: port,
    SLURM_STEP_ID: '0',
    SLURM_PROCID: rank,
    SLURM_LOCALID: rank,
    SLURM_NODEID: '0',
    SLURM_NTASKS: '2',
    SLURM_STEP_NUM_TASKS: '2',
    SLURM_STEP_NUM_NODES: '1',
    SLURM_STEP_NODELIST: 'node[07]',
    SLURM_RESTART_COUNT: '2',
  }),
  kubeflow: (rank, port) => ({
    PET_NNODES: '2',
    PET_NPROC_PER_NODE: 'auto',
    PET_NODE_RANK: rank,
    PET_MASTER_ADDR: '127.0.0.1',
    PET_MASTER_PORT: port,
    JOB_COMPLETION_INDEX: rank,
  }),
  jobset: (rank, port) => ({
    JOBSET_NAME: 'set',
    JOBSET_RESTART_ATTEMPT: '2',
    JOB_COMPLETION_INDEX: rank,
    WORLD_SIZE: '2',
    MASTER_PORT: port,
    // Rank 0 is reached through a forwarded port: the address that the others know is not one of
    // its own.
    ...(rank === '0'
      ? { MASTER_ADDR: '192.0.2.250', SHARDWEAVE_LISTEN_ADDRESS: '0.0.0.0' }
      : { MASTER_ADDR: '127.0.0.1' }),
  }),
};

describe.each(Object.entries(LAUNCHERS))('the environment of %s', (name, variables) => {
  it('makes a group of its processes', { timeout: LIMIT_MS + 5000 }, async () => {
    const port = String(await freePort());
    const printed = await runAll(ranks.map((rank) => variables(rank, port)));
    const attempt = ['torchrun', 'slurm', 'jobset'].includes(name) ? 2 : 0;
    expect(printed).toEqual(
      ranks.map((rank) => `rank ${rank} of 2 by ${name}, attempt ${attempt}: sum 3\n`),
    );
  });
});

function mpirunProblem(): string | undefined {
  try {
    execFileSync('mpirun', ['--version'], { stdio: 'ignore' });
    return undefined;
  } catch {
    return 'no mpirun';
  }
}

const noMpi = mpirunProblem();
const noLan = lanProblem();

describe('several processes that mpirun starts', () => {
  const title = `make a group over mpi${noMpi === undefined ? '' : `, skipped: ${noMpi}`}`;
  it.skipIf(noMpi !== undefined)(title, { timeout: LIMIT_MS + 5000 }, async () => {
    const flags = ['--allow-run-as-root', '--oversubscribe', '-np', '2'];
    const child = spawn('mpirun', [...flags, process.execPath, program], {
      env: {
        ...process.env,
        // The bundle lies outside this package, and koffi is an optional dependency of this
        // package.
        NODE_PATH: fileURLToPath(new URL('../node_modules', import.meta.url)),
      },
    });
    const lines = (await outputOf(child)).trim().split('\n').sort();
    expect(lines).toEqual([0, 1].map((rank) => `rank ${rank} of 2 by openmpi, attempt 0: sum 3`));
  });
});

describe('ranks on several hosts', () => {
  const title = `make a group by the first one's address, and train there${noLan === undefined ? '' : `, skipped: ${noLan}`}`;
  it.skipIf(noLan !== undefined)(title, { timeout: LIMIT_MS + 5000 }, async () => {
    using lan = createLan(3);
    const [first] = lan.hosts;
    const printed = await Promise.all(
      lan.hosts.map(({ fork }, rank) =>
        outputOf(
          fork(program, [], {
            stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
            env: environment({
              RANK: String(rank),
              WORLD_SIZE: '3',
              LOCAL_RANK: '0',
              LOCAL_WORLD_SIZE: '1',
              MASTER_ADDR: first!.address,
            }),
          }),
        ),
      ),
    );
    expect(printed).toEqual(
      [0, 1, 2].map((rank) => `rank ${rank} of 3 by env, attempt 0: sum 6\n`),
    );
    const trained = await Promise.all(
      lan.hosts.slice(0, 2).map(({ fork }, rank) =>
        outputOf(
          fork(training, [String(rank), first!.address], {
            stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
            env: { SHARDWEAVE_SECRET: 'the same on both machines' },
          }),
        ),
      ),
    );
    for (const rank of [0, 1]) {
      const losses = printedLosses(trained[rank]!.split('\n'), rank);
      expect(losses).toHaveLength(20);
      expect(losses.at(-1)).toBeLessThan(losses[0]! / 2);
    }
  });
});
