// What the ws test page offers to the test that drives it: `window.wsPage`. A page is one rank.

import { CollectiveError } from '@shardweave/collectives';
import { conformanceCases, type TransportHarness } from '@shardweave/collectives/testing';
// The `browser` side of the entry; its types here are those of Node's, which has more options.
import { connectWs, connectWsEndpoint } from '@shardweave/collectives/ws';

declare global {
  interface Window {
    wsPage: typeof wsPage;
    /** The test gives the port of a job's rendezvous, made when a rank first asks for it. */
    portOf(job: string, worldSize: number): Promise<number>;
  }
}

export interface PageRank {
  /** Names the case's run; its jobs are `id/0`, `id/1`, .... */
  readonly id: string;
  readonly rank: number;
  readonly worldSize: number;
  readonly secret: string;
}

/** Sums that a job has had so far: each is one in which every rank took part. */
const numSums: Record<string, number> = {};

const wsPage = { runCase, sumUntilEnd, numSums, tryToJoin, gather };
window.wsPage = wsPage;

/** Runs one case of the conformance suite as one rank; resolves with how it failed, if it did. */
async function runCase(name: string, place: PageRank): Promise<string | undefined> {
  const { id, rank, worldSize, secret } = place;
  let numJobs = 0;
  const harness: TransportHarness = {
    name: 'ws in pages',
    worldSizes: [worldSize],
    create: async (size, options = {}) => {
      const port = size === 1 ? 1 : await window.portOf(`${id}/${numJobs++}`, size);
      const job = { rank, worldSize: size, port, secret };
      // A worker a job would take much of the suite's time.
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

/** Adds up without end; resolves with the error that ends it. */
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

/** Gathers so many bytes of each rank and leaves; resolves with the first byte of each part. */
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

/** How joining fails. */
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
