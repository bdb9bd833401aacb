// A rank as a process of its own, bundled and started by ws-process.test.ts. Gathers until told
// otherwise and says how it ended.

import { type CollectiveError, withDelay } from '@shardweave/collectives';
import { connectWs } from '@shardweave/collectives/ws';

async function main(): Promise<void> {
  const env = (name: string) => Number(process.env[name]);
  const group = await connectWs({
    rank: env('RANK'),
    worldSize: env('WORLD_SIZE'),
    port: env('PORT'),
    secret: process.env.SECRET ?? '',
    ...(process.env.SILENCE_MS === undefined ? {} : { silenceMs: env('SILENCE_MS') }),
    onListen: (port) => process.send?.({ port }),
  });
  const slow = withDelay(group, 5);
  const input = new Uint8Array(100_000);
  const output = new Uint8Array(input.length * group.worldSize);
  process.send?.({ ready: true });
  if (process.env.BUSY_RANK === process.env.RANK) {
    const end = performance.now() + env('BUSY_MS');
    while (performance.now() < end) {
      // computes without a turn of the event loop
    }
  }
  const numCalls = process.env.NUM_CALLS === undefined ? 1e9 : env('NUM_CALLS');
  for (let i = 0; i < numCalls; i++) {
    await slow.allGather(input, output);
  }
  await group.close();
}

main().then(
  () => process.send?.({ done: true }, () => process.disconnect()),
  (error: CollectiveError) => {
    const { code, message, originRank } = error;
    process.send?.({ code, message, originRank }, () => process.disconnect());
  },
);
