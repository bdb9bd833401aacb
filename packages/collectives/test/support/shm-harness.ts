// This runs the shm transport in the conformance suite, with all ranks in this thread. That shows
// everything but what threads do at the same time, which shm-threads.test.ts tests.

import { connectShmEndpoint, createShmJob } from '@shardweave/collectives/shm';
import { STOP_CASE, type TransportHarness } from '@shardweave/collectives/testing';

/** A thread that computes without end can't be told from a stopped one. */
export const shmSkips: Readonly<Record<string, string>> = {
  [STOP_CASE]: 'threads are stopped with their whole process',
};

export const shmHarness: TransportHarness = {
  name: 'shm',
  worldSizes: [1, 4, 8], // Two and three ranks run as threads.
  skip: shmSkips,
  create: async (worldSize, options = {}) => {
    const handles = createShmJob(worldSize);
    const joined = await Promise.all(handles.map((handle) => connectShmEndpoint(handle, options)));
    return joined.map(({ group, endpoint }) => ({ group, kill: () => endpoint.terminate() }));
  },
};
