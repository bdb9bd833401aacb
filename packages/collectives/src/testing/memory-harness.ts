// The memory transport as the conformance suite takes it; it is also an example of a harness.

import { createMemoryEndpoints } from '../transports/memory.js';
import { STOP_CASE, type TransportHarness } from './harness.js';

/** The harness of the memory transport, whose ranks all live in this thread. */
export const memoryHarness: TransportHarness = {
  name: 'memory',
  worldSizes: [1, 2, 3, 4, 8, 128],
  skip: { [STOP_CASE]: 'ranks of one thread stop together' },
  create: async (worldSize, options = {}) =>
    createMemoryEndpoints(worldSize, options).map(({ group, endpoint }) => ({
      group,
      kill: () => endpoint.terminate(),
    })),
};
