// Groups and stores are formed from environment variables here. The tests check which setting wins
// over which, and what is refused before anything is sent. The ranks are in this process, each with
// an environment of its own.

import { promises } from 'node:dns';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { ProcessGroup } from '@shardweave/collectives';
import { type EnvVariables, initProcessGroup, LaunchError } from '@shardweave/collectives/launch';
import { describe, expect, it, vi } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { freePort } from './support/free-port.js';

const SECRET = 'made by the launcher';
const folder = newFolder();
const secretFile = join(folder, 'secret');
writeFileSync(secretFile, `${SECRET}\n`);

function byHand(rank: number, more: EnvVariables): EnvVariables {
  return { RANK: String(rank), WORLD_SIZE: '2', ...more };
}

async function sumOfRanks(group: ProcessGroup): Promise<number> {
  const sum = new Float32Array(1);
  const bytes = (array: Float32Array) => new Uint8Array(array.buffer);
  const options = { dtype: 'f32', op: 'sum' } as const;
  await group.allReduce(bytes(Float32Array.of(group.rank + 1)), bytes(sum), options);
  return sum[0]!;
}

async function closeAll(groups: readonly AsyncDisposable[]): Promise<void> {
  await Promise.all(groups.map((group) => group[Symbol.asyncDispose]()));
}

async function launchError(promise: Promise<unknown>): Promise<LaunchError> {
  const error = await promise.then(
    () => undefined,
    (reason: unknown) => reason,
  );
  expect(error).toBeInstanceOf(LaunchError);
  return error as LaunchError;
}

describe('a group', () => {
  it('forms from the environment, with the secret in a variable or in a file', async () => {
    const MASTER_PORT = String(await freePort());
    const groups = await Promise.all([
      initProcessGroup({ env: byHand(0, { MASTER_PORT, SHARDWEAVE_SECRET: SECRET }) }),
      initProcessGroup({ env: byHand(1, { MASTER_PORT, SHARDWEAVE_SECRET_FILE: secretFile }) }),
    ]);
    expect(groups.map(({ rank, worldSize }) => [rank, worldSize])).toEqual([
      [0, 2],
      [1, 2],
    ]);
    expect(await Promise.all(groups.map(sumOfRanks))).toEqual([3, 3]);
    await closeAll(groups);
  });

  it('takes explicit options before the environment', async () => {
    const port = await freePort();
    const env = { RANK: '7', WORLD_SIZE: 'wrong', MASTER_PORT: 'none', SHARDWEAVE_SECRET: 'short' };
    const place = { worldSize: 2, address: 'localhost', port, secret: SECRET, env };
    const groups = await Promise.all([0, 1].map((rank) => initProcessGroup({ ...place, rank })));
    expect(await Promise.all(groups.map(sumOfRanks))).toEqual([3, 3]);
    await closeAll(groups);
  });

  it("takes the world size that an Indexed Job can't tell", async () => {
    const port = await freePort();
    const options = { worldSize: 2, port, secret: SECRET, address: '127.0.0.1' };
    const env = (index: string) => ({ JOB_COMPLETION_INDEX: index, HOSTNAME: `train-${index}` });
    const place = { ...options, listenAddress: '127.0.0.1' };
    const starts = [0, 1].map((rank) => {
      const { listenAddress, ...others } = place;
      const own = rank === 0 ? place : others;
      return initProcessGroup({ ...own, env: env(String(rank)) });
    });
    const groups = await Promise.all(starts);
    expect(groups.map(({ rank }) => rank)).toEqual([0, 1]);
    await closeAll(groups);
  });

  it('a group of one process needs no launcher but RANK and WORLD_SIZE, and no secret', async () => {
    const group = await initProcessGroup({ env: { RANK: '0', WORLD_SIZE: '1' } });
    expect(await sumOfRanks(group)).toBe(1);
    await group.close();
    await (await initProcessGroup({ rank: 0, worldSize: 1, env: {} })).close();
  });

  it('refuses a rank of the attempt before', async () => {
    const MASTER_PORT = String(await freePort());
    const env = (rank: number, attempt: string) =>
      byHand(rank, { MASTER_PORT, SHARDWEAVE_SECRET: SECRET, SHARDWEAVE_ATTEMPT: attempt });
    const join = (rank: number, attempt: string) =>
      initProcessGroup({ env: env(rank, attempt), joinTimeoutMs: 20_000 });
    const first = join(0, '1');
    await expect(join(1, '0')).rejects.toThrow(/this is attempt 1, not 0/);
    const groups = await Promise.all([first, join(1, '1')]);
    await closeAll(groups);
  });
});

describe('a start is refused', () => {
  const cases: readonly [string, EnvVariables, string, RegExp][] = [
    ['without a launcher', {}, 'RANK', /no launcher .* Set RANK and WORLD_SIZE/],
    [
      'without a secret',
      byHand(0, {}),
      'SHARDWEAVE_SECRET',
      /Make one with "openssl rand -hex 32"/,
    ],
    [
      'with a short secret, which is not shown',
      byHand(0, { SHARDWEAVE_SECRET: 'sesame' }),
      'SHARDWEAVE_SECRET',
      /^(?!.*sesame).*at least 16 characters, got "6 characters"/,
    ],
    [
      'with a file that is not there',
      byHand(0, { SHARDWEAVE_SECRET_FILE: join(folder, 'none') }),
      'SHARDWEAVE_SECRET_FILE',
      /can be read \(ENOENT\)/,
    ],
    [
      'with a transport that is none between processes',
      byHand(0, { SHARDWEAVE_SECRET: SECRET, SHARDWEAVE_TRANSPORT: 'shm' }),
      'SHARDWEAVE_TRANSPORT',
      /got "shm"\. Set it to ws or mpi/,
    ],
    [
      'over ws on several hosts of mpirun, which says no address',
      {
        OMPI_COMM_WORLD_RANK: '0',
        OMPI_COMM_WORLD_SIZE: '4',
        OMPI_COMM_WORLD_LOCAL_SIZE: '2',
        SHARDWEAVE_TRANSPORT: 'ws',
        SHARDWEAVE_SECRET: SECRET,
      },
      'MASTER_ADDR',
      /which openmpi does not say/,
    ],
    [
      'on rank 0 whose name nobody knows in time',
      byHand(0, { MASTER_ADDR: 'no-such-host.invalid', SHARDWEAVE_SECRET: SECRET }),
      'MASTER_ADDR',
      /known here \(E\w+ for 300 ms\)/,
    ],
  ];

  it.each(cases)('%s', async (_, env, variable, message) => {
    const error = await launchError(initProcessGroup({ env, joinTimeoutMs: 300 }));
    expect(error.variable).toBe(variable);
    expect(error.message).toMatch(message);
  });

  it('the first host of several is refused if its own name is its loopback', async () => {
    const lookup = vi.spyOn(promises, 'lookup');
    lookup.mockResolvedValue({ address: '127.0.1.1', family: 4 } as never);
    const place = { WORLD_SIZE: '4', LOCAL_WORLD_SIZE: '2', MASTER_ADDR: 'node1' };
    for (const rank of [0, 1]) {
      const env = { ...byHand(rank, place), SHARDWEAVE_SECRET: SECRET };
      const error = await launchError(initProcessGroup({ env, joinTimeoutMs: 300 }));
      expect(error).toMatchObject({ variable: 'MASTER_ADDR', value: 'node1, here 127.0.1.1' });
    }
    lookup.mockRestore();
  });
});
