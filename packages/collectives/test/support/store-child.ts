// This process serves a store or uses one. store-process.test.ts bundles and starts it.

import { connectStore, StoreServer } from '@shardweave/collectives/launch';

const { ROLE, PORT, RANK, WORLD_SIZE, SECRET = '', SILENCE_MS } = process.env;

async function serve(): Promise<void> {
  const { port } = await StoreServer.listen({ secret: SECRET, keepsAlive: true });
  process.send?.({ port });
}

async function use(): Promise<void> {
  const place = { rank: Number(RANK), worldSize: Number(WORLD_SIZE) };
  const store = await connectStore({
    ...place,
    port: Number(PORT),
    secret: SECRET,
    ...(SILENCE_MS === undefined ? {} : { silenceMs: Number(SILENCE_MS) }),
  });
  const sum = await store.add('processes', 1);
  await store.barrier('all here');
  process.send?.({ sum });
  if (ROLE === 'waits') {
    await store.get('never').catch(({ code, message }) => process.send?.({ code, message }));
  }
  process.disconnect(); // It closes neither the store nor anything else.
}

void (ROLE === 'serves' ? serve() : use());
