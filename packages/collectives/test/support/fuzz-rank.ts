// This is rank 0 of two ranks, in a process of its own for ws-fuzz.test.ts. It reports what it has
// refused, the memory it holds, and whether the job formed and worked in the end.

import { connectWs } from '@shardweave/collectives/ws';

async function main(): Promise<void> {
  const reasons: Record<string, number> = {};
  process.on('message', () => {
    process.send?.({ rssMiB: process.memoryUsage().rss / 2 ** 20, reasons });
  });
  const group = await connectWs({
    rank: 0,
    worldSize: 2,
    port: 0,
    secret: process.env.SECRET ?? '',
    joinTimeoutMs: 300_000,
    // The many joins are to be read, not turned away for their number.
    limits: { maxJoinsPerSecond: 1e6 },
    onListen: (port) => process.send?.({ port }),
    onRefused: ({ reason, numLeftOut }) => {
      const kind = reason.replace(/: .*/, '').replace(/\d+/g, 'N');
      reasons[kind] = (reasons[kind] ?? 0) + 1;
      reasons['left out'] = (reasons['left out'] ?? 0) + numLeftOut;
    },
  });
  const all = new Uint8Array(2 * 100_000);
  await group.allGather(new Uint8Array(100_000).fill(1), all);
  process.send?.({ sum: all.reduce((sum, x) => sum + x, 0) });
  await group.close();
  process.disconnect();
}

void main();
