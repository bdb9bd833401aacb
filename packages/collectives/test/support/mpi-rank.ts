// A rank of mpi.test.ts, bundled and started by mpirun: runs the conformance suite, each case in step
// with the same case on the other ranks, or one of the programs below, and writes what came out.

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { CollectiveError } from '@shardweave/collectives';
import { connectMpi } from '@shardweave/collectives/mpi';
import {
  conformanceCases,
  type TransportHarness,
  transcriptHash,
} from '@shardweave/collectives/testing';
import { mpiSkips } from './mpi-skips.js';

const worldSize = Number(process.env.OMPI_COMM_WORLD_SIZE ?? process.env.PMI_SIZE);
const rank = Number(process.env.OMPI_COMM_WORLD_RANK ?? process.env.PMI_RANK);

/** Only this process's rank: mpirun has started the others, which run the same case. */
const harness: TransportHarness = {
  name: 'mpi',
  worldSizes: [worldSize],
  create: async (size, options = {}) => {
    const group = await connectMpi({
      ...options,
      worldSize: size,
      finalize: false, // for MPI starts once a process
      joinTimeoutMs: 20_000,
    });
    return [{ group, kill: () => process.kill(process.pid, 'SIGKILL') }];
  },
};

const programs = {
  /** Every case of this world size: what went wrong, by the case's name. */
  cases: async () => {
    const failures: Record<string, string | null> = {};
    for (const { name, worldSizes, run } of conformanceCases) {
      if (worldSizes.includes(worldSize) && mpiSkips[name] === undefined) {
        failures[name] = await run(harness, worldSize).then(
          () => null,
          (error: Error) => error.stack ?? String(error),
        );
      }
    }
    const group = await connectMpi();
    const hash = await transcriptHash(group);
    await group.close();
    return { failures, hash };
  },
};

const name = process.argv[2] as keyof typeof programs;
const result = await programs[name]().catch((error: CollectiveError) => ({
  code: error.code,
  message: error.message,
}));
writeFileSync(join(process.env.SHARDWEAVE_RESULTS!, `${rank}.json`), JSON.stringify(result));
