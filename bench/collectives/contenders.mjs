// Who takes part. `ranksAre` says what the ranks of a contender are. Ours name an adapter
// (adapters/), and rivals name a script (rivals/). `engine` has options for the adapter's engine,
// and `connect` has options for joining the ranks. A contender with `isExtra` runs only where it is
// asked for. `folder` holds its programs where they are those of another checkout.

import { join } from 'node:path';

export const CONTENDERS = {
  memory: { adapter: 'memory', ranksAre: 'one process', says: 'ranks in one process' },
  shm: { adapter: 'shm', ranksAre: 'threads', says: 'worker threads' },
  'shm-registered': {
    adapter: 'shm',
    ranksAre: 'threads',
    says: 'worker threads, buffers from `group.allocate`',
    engine: { isRegistered: true },
  },
  ws: { adapter: 'ws', ranksAre: 'processes', says: 'processes' },
  'ws-tls': {
    adapter: 'ws',
    ranksAre: 'processes',
    says: 'processes, under TLS by a key from the secret, as between hosts',
    connect: { encryption: 'always' },
    isExtra: true,
  },
  mpi: { adapter: 'mpi', ranksAre: 'mpirun', says: 'processes under mpirun' },
  net: {
    adapter: 'net',
    ranksAre: 'processes',
    says: 'plain sockets in the same pattern, with the same sums: the yardstick of ws',
    isRival: true,
  },
  atomics: {
    adapter: 'atomics',
    ranksAre: 'threads',
    says: 'worker threads that wait by Atomics.waitAsync and copy: the yardstick of shm-registered',
    isRival: true,
    lacks: ['reduce-scatter', 'all-reduce'],
  },
  gloo: {
    python: 'gloo.py',
    ranksAre: 'processes',
    says: 'torch.distributed, TCP',
    isRival: true,
    lacks: ['reduce-scatter'],
  },
  openmpi: {
    python: 'openmpi.py',
    ranksAre: 'mpirun',
    says: 'mpi4py, shared memory',
    isRival: true,
  },
};

/**
 * The contenders with these names, rivals included. Each of our transports appears again for each
 * wire format, and all of ours again as another checkout at `beside` has them, where it is given.
 * Throws where a name is unknown.
 */
export function chooseContenders(names, { wires, beside }) {
  const chosen = names.map((name) => {
    const contender = CONTENDERS[name];
    if (contender === undefined) {
      const known = Object.keys(CONTENDERS).join(', ');
      throw new Error(`expected transports or rivals among ${known}, got ${name}`);
    }
    return { name, lacks: [], isRival: false, ...contender };
  });
  const compressed = chosen
    .filter(({ isRival }) => !isRival)
    .flatMap((contender) => wires.map((wire) => withWire(contender, wire)));
  const ours = [...chosen.filter(({ isRival }) => !isRival), ...compressed];
  const others = beside === undefined ? [] : ours.map((contender) => ofCheckout(contender, beside));
  return [...chosen, ...compressed, ...others];
}

/** The contender as another checkout has it. */
function ofCheckout({ name, says, ...contender }, root) {
  return {
    ...contender,
    name: `${name} (beside)`,
    says: `${says}, of the checkout beside`,
    folder: join(root, 'bench', 'collectives'),
  };
}

/** The contender with compressed transfers. Only sums and all-gathers of f32 can be compressed. */
function withWire({ name, says, engine, ...contender }, wire) {
  return {
    ...contender,
    name: `${name}+${wire}`,
    says: `${says}, f32 as ${wire} on the wire`,
    lacks: ['broadcast', 'send-recv'],
    engine: { ...engine, wire },
  };
}
