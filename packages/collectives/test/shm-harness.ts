// The shm transport for the conformance suite: all ranks in this thread, which is as good as many
// for everything but what threads do at the same time (shm-threads.test.ts).

import { connectShmEndpoint, createShmJob } from '@shardweave/collectives/shm';
import type { TransportHarness } from '@shardweave/collectives/testing';

export const shmHarness: TransportHarness = {
  name: 'shm',
  worldSizes: [1, 2, 3, 4, 8],
  create: async (worldSize, options = {}) => {
    const seats = createShmJob(worldSize);
    const joined = await Promise.all(seats.map((seat) => connectShmEndpoint(seat, options)));
    return joined.map(({ group, endpoint }) => ({ group, kill: () => endpoint.terminate() }));
  },
};
