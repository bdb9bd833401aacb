// This is a rank of mpi.test.ts, which bundles it and starts it by mpirun. It runs the conformance
// suite, each case in step with the same case on the other ranks, or another of the programs below,
// and writes the results.

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { CollectiveError } from '@shardweave/collectives';
import { type ConnectMpiOptions, connectMpi } from '@shardweave/collectives/mpi';
import {
  conformanceCases,
  type TransportHarness,
  transcriptHash,
} from '@shardweave/collectives/testing';
import { mpiSkips } from './mpi-skips.js';
import { reversedTranscript } from './reversed-transcript.js';

const worldSize = Number(process.env.OMPI_COMM_WORLD_SIZE ?? process.env.PMI_SIZE);
const rank = Number(process.env.OMPI_COMM_WORLD_RANK ?? process.env.PMI_RANK);

/**
 * A harness of this process's rank alone: mpirun has started the others, which run the same case.
 */
const harness: TransportHarness = {
  name: 'mpi',
  worldSizes: [worldSize],
  create: async (size, options = {}) => {
    const group = await connectMpi({
      ...options,
      worldSize: size,
      finalize: false, // A process can start MPI only once.
      joinTimeoutMs: 20_000,
    });
    return [{ group, kill: () => process.kill(process.pid, 'SIGKILL') }];
  },
};

/** A process can start MPI only once, so every program but the last leaves it running. */
type Finalize = Pick<ConnectMpiOptions, 'finalize'>;

const programs = {
  /** Runs every case of this world size. Results are the problems by the case's name. */
  cases: async (last: Finalize) => {
    const failures: Record<string, string | null> = {};
    for (const { name, worldSizes, run } of conformanceCases) {
      if (worldSizes.includes(worldSize) && mpiSkips[name] === undefined) {
        failures[name] = await run(harness, worldSize).then(
          () => null,
          (error: Error) => error.stack ?? String(error),
        );
      }
    }
    const group = await connectMpi(last);
    const hash = await transcriptHash(group);
    await group.close();
    return { failures, hash };
  },

  reversed: async (last: Finalize) => {
    const group = await connectMpi(last);
    const transcript = await reversedTranscript(group);
    await group.close();
    return transcript;
  },

  /** Runs MPI's own sums. Results are the values, and whether they are equal on all ranks. */
  native: async (last: Finalize) => {
    const group = await connectMpi({ ...last, nativeAllReduce: true });
    const count = 1_100_003;
    const own = Float32Array.from({ length: count }, (_, i) => Math.fround((i % 1000) / 7 + rank));
    const sum = new Float32Array(count);
    await group.allReduce(bytesOf(own), bytesOf(sum), { dtype: 'f32', op: 'sum' });
    const { bytesSent } = group.stats();
    let worst = 0;
    for (let i = 0; i < count; i++) {
      let exact = 0;
      for (let r = 0; r < worldSize; r++) {
        exact += Math.fround((i % 1000) / 7 + r);
      }
      worst = Math.max(worst, Math.abs(sum[i]! - exact) / Math.max(1, exact));
    }
    const whole = Int32Array.from({ length: 1000 }, (_, i) => i * (rank + 1));
    await group.allReduce(bytesOf(whole), bytesOf(whole), { dtype: 'i32', op: 'max' });
    const least = Uint32Array.from({ length: 1000 }, (_, i) => i + rank);
    await group.allReduce(bytesOf(least), bytesOf(least), { dtype: 'u32', op: 'min' });
    const mean = Float32Array.from(own);
    await group.allReduce(bytesOf(mean), bytesOf(mean), { dtype: 'f32', op: 'mean' });
    await group.close();
    return { bytesSent, worst, max: whole[999], min: least[999], mean: mean[999] };
  },

  /**
   * Tries what can't be joined: a wrong number of ranks, a library that doesn't exist, and MPI a
   * second time.
   */
  refusals: async () => {
    const attempts: ConnectMpiOptions[] = [
      { library: 'libnothing.so' },
      { worldSize: worldSize + 1 },
      {},
    ];
    const said: string[] = [];
    const group = await connectMpi();
    await group.close();
    for (const options of attempts) {
      await connectMpi(options).catch(({ code, message }: CollectiveError) => {
        said.push(`${code}: ${message}`);
      });
    }
    return said;
  },

  /**
   * Rank 1 never lets its event loop turn again; rank 0 ends the job and itself, which ends mpirun.
   */
  stuck: async () => {
    const group = await connectMpi();
    if (rank === 1) {
      await group.send(new Uint8Array(1), { to: 0 });
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);
    }
    await group.recv(new Uint8Array(1), { from: 1 });
    const pending = group.barrier();
    group.abort('on purpose');
    process.exitCode = 3; // It ends by itself when nothing keeps it alive.
    return await pending.catch(({ code }: CollectiveError) => code);
  },

  /** Sums more than 2 GiB in one buffer, which MPI can't count: messages take over. */
  huge: async () => {
    const group = await connectMpi();
    const part = 1_200_000_000;
    const whole = new Uint8Array(worldSize * part);
    const own = whole.subarray(rank * part, (rank + 1) * part);
    own.fill(rank + 1);
    await group.allGather(own, whole);
    const seen = Array.from({ length: worldSize }, (_, r) => [
      whole[r * part],
      whole[(r + 1) * part - 1],
    ]);
    await group.close();
    return seen;
  },
};

function bytesOf(view: ArrayBufferView): Uint8Array {
  return new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
}

const names = process.argv.slice(2) as (keyof typeof programs)[];
const results: Record<string, unknown> = {};
for (const [i, name] of names.entries()) {
  results[name] = await programs[name]({ finalize: i === names.length - 1 }).catch(
    (error: CollectiveError) => ({ code: error.code, message: error.message }),
  );
}
writeFileSync(join(process.env.SHARDWEAVE_RESULTS!, `${rank}.json`), JSON.stringify(results));
