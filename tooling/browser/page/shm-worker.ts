// A rank as a web worker of the page. It asks the page for a handle of each job, and runs what it
// is told to.

import type { CollectiveError, ProcessGroup } from '@shardweave/collectives';
import { connectShm, connectShmEndpoint, type ShmRankHandle } from '@shardweave/collectives/shm';
import { conformanceCases, type TransportHarness } from '@shardweave/collectives/testing';

export type Order =
  | { readonly type: 'case'; readonly name: string; readonly worldSize: number }
  /** Gathers again and again until something goes wrong, and reports that. */
  | { readonly type: 'gather' };

export type Reply =
  | { readonly type: 'handle' }
  | { readonly type: 'running' }
  | { readonly type: 'done'; readonly failure?: string }
  | { readonly type: 'ended'; readonly code: string; readonly originRank: number };

const reply = (message: Reply) => self.postMessage(message);

function next<T>(): Promise<T> {
  return new Promise((resolve) => {
    self.addEventListener('message', ({ data }) => resolve(data), { once: true });
  });
}

async function askForHandle(): Promise<ShmRankHandle> {
  reply({ type: 'handle' });
  return next<ShmRankHandle>();
}

const harness: TransportHarness = {
  name: 'shm, a web worker each',
  worldSizes: [],
  create: async (_, options) => {
    const { group, endpoint } = await connectShmEndpoint(await askForHandle(), options);
    return [{ group, kill: () => endpoint.terminate() }];
  },
};

async function gather(group: ProcessGroup): Promise<void> {
  const input = group.allocate(100_000);
  const output = group.allocate(input.length * group.worldSize);
  for (let i = 0; ; i++) {
    await group.allGather(input, output);
    if (i === 5) {
      reply({ type: 'running' });
    }
  }
}

async function serve(): Promise<void> {
  for (;;) {
    const order = await next<Order>();
    if (order.type === 'case') {
      const { run } = conformanceCases.find(({ name }) => name === order.name)!;
      const failure = await run(harness, order.worldSize).then(
        () => undefined,
        (error: Error) => error.stack ?? String(error),
      );
      reply(failure === undefined ? { type: 'done' } : { type: 'done', failure });
    } else {
      const group = await connectShm(await askForHandle());
      await gather(group).catch(({ code, originRank }: CollectiveError) =>
        reply({ type: 'ended', code, originRank }),
      );
    }
  }
}

void serve();
