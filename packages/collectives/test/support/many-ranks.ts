// This is a process with several ranks of one job. It joins all of them, sums once, and closes.

import { connectWs } from '@shardweave/collectives/ws';

/** The place of a process's ranks in their job. */
export interface ManyRanks {
  readonly first: number;
  readonly count: number;
  readonly worldSize: number;
  readonly port: number;
  readonly secret: string;
}

async function main({ first, count, ...job }: ManyRanks): Promise<void> {
  const groups = await Promise.all(
    Array.from({ length: count }, (_, i) =>
      connectWs({
        ...job,
        rank: first + i,
        joinTimeoutMs: 600_000,
        silenceMs: 60_000,
      }),
    ),
  );
  const sums = await Promise.all(
    groups.map(async (group) => {
      const sum = new Float32Array(1);
      const own = Float32Array.of(group.rank);
      const options = { dtype: 'f32', op: 'sum' } as const;
      await group.allReduce(new Uint8Array(own.buffer), new Uint8Array(sum.buffer), options);
      return sum[0];
    }),
  );
  await Promise.all(groups.map((group) => group.close()));
  process.send?.({ sums });
  process.disconnect();
}

main(JSON.parse(process.argv[2]!) as ManyRanks).catch((error: Error) => {
  process.send?.({ error: error.message });
  process.exit(1);
});
