// What the ws test page offers to the test that drives it: `window.wsPage`. A page is one rank.

import { CollectiveError } from '@shardweave/collectives';
import { joinElastic, MembershipError } from '@shardweave/collectives/elastic';
import { conformanceCases, type TransportHarness } from '@shardweave/collectives/testing';
// This is the `browser` side of the entry. The types are those of the side for Node, which has more
// options.
import { connectWs, connectWsEndpoint } from '@shardweave/collectives/ws';
import { CountingMember } from '../../../packages/collectives/test/support/counting-member.ts';

declare global {
  interface Window {
    wsPage: typeof wsPage;
    /** Asks the test for the port of a job's rendezvous, which is made when the first rank asks. */
    portOf(job: string, worldSize: number): Promise<number>;
  }
}

export interface PageRank {
  /** The name of this run of a case. Its jobs are `id/0`, `id/1` and so on. */
  readonly id: string;
  readonly rank: number;
  readonly worldSize: number;
  readonly secret: string;
}

/** How many sums each job has done so far. Every rank takes part in each of them. */
const numSums: Record<string, number> = {};

/** The ids of the members with which this page has done a step last. */
let workedWith: readonly number[] = [];

const wsPage = {
  runCase,
  sumUntilEnd,
  numSums,
  tryToJoin,
  gather,
  workElastic,
  numMembers: () => workedWith.length,
};
window.wsPage = wsPage;

/** Runs one case of the conformance suite as one rank. Resolves to the failure, if there is one. */
async function runCase(name: string, place: PageRank): Promise<string | undefined> {
  const { id, rank, worldSize, secret } = place;
  let numJobs = 0;
  const harness: TransportHarness = {
    name: 'ws in pages',
    worldSizes: [worldSize],
    create: async (size, options = {}) => {
      const port = size === 1 ? 1 : await window.portOf(`${id}/${numJobs++}`, size);
      const job = { rank, worldSize: size, port, secret };
      // One worker for each job would take much of the suite's time.
      const joined = await connectWsEndpoint({ ...options, ...job, heartbeat: 'link' });
      return [{ group: joined.group, kill: () => joined.endpoint.terminate() }];
    },
  };
  try {
    await conformanceCases.find((each) => each.name === name)!.run(harness, worldSize);
    return undefined;
  } catch (error) {
    return String((error as Error).stack ?? error);
  }
}

/** Adds up without end. Resolves to the error that ends it. */
async function sumUntilEnd(place: PageRank) {
  const { id, rank, worldSize, secret } = place;
  const port = await window.portOf(id, worldSize);
  const group = await connectWs({ rank, worldSize, port, secret });
  const buffer = new Uint8Array(4096);
  try {
    for (;;) {
      await group.allReduce(buffer, buffer, { dtype: 'f32', op: 'sum' });
      numSums[id] = (numSums[id] ?? 0) + 1;
    }
  } catch (error) {
    const { code, originRank, message } = error as CollectiveError;
    return { code, originRank, message };
  }
}

/** Gathers some bytes from each rank and leaves. Resolves to the first byte of each part. */
async function gather(
  place: PageRank,
  byteLength: number,
  worker: { readonly heartbeatWorker?: string },
): Promise<number[]> {
  const { id, rank, worldSize, secret } = place;
  const port = await window.portOf(id, worldSize);
  const group = await connectWs({ rank, worldSize, port, secret, ...worker });
  const output = new Uint8Array(worldSize * byteLength);
  await group.allGather(new Uint8Array(byteLength).fill(rank + 1), output);
  await group.close();
  return Array.from({ length: worldSize }, (_, part) => output[part * byteLength]!);
}

/** Does steps as a member of an elastic job. Resolves to the reason for which that has ended. */
async function workElastic(port: number, secret: string): Promise<string> {
  const member = await joinElastic({ rendezvous: { host: '127.0.0.1', port }, secret });
  try {
    await new CountingMember(member, {
      done: ({ members }) => {
        workedWith = members.map(({ id }) => id);
      },
      pause: () => new Promise((resolve) => setTimeout(resolve, 10)),
    }).run();
  } catch (error) {
    if (error instanceof MembershipError) {
      return error.reason;
    }
    throw error;
  }
  return '';
}

/** Resolves to the error with which joining fails. */
async function tryToJoin(place: PageRank, joinTimeoutMs: number) {
  const { id, rank, worldSize, secret } = place;
  const port = await window.portOf(id, worldSize);
  try {
    await connectWs({ rank, worldSize, port, secret, joinTimeoutMs });
    return undefined;
  } catch (error) {
    return error instanceof CollectiveError
      ? { code: error.code, message: error.message }
      : { code: 'none', message: String(error) };
  }
}
