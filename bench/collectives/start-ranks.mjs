// A process of the bench, `node start-ranks.mjs SPEC`. Its ranks live in this thread or in one
// worker each.
import { isMainThread, Worker, workerData } from 'node:worker_threads';

const spec = isMainThread ? JSON.parse(process.argv[2]) : workerData.spec;
// mpirun starts all processes with the same arguments, and tells each its rank in the environment.
const ranks = spec.ranks ?? [Number(process.env.OMPI_COMM_WORLD_RANK)];

if (isMainThread && spec.ranksAre === 'threads') {
  const { adapter, worldSize } = spec;
  const { shareAmong } = await import(`./adapters/${adapter}.mjs`);
  const shared = await shareAmong(worldSize, spec.job);
  for (const rank of ranks) {
    const { data, transferList } = shared(rank);
    new Worker(new URL(import.meta.url), {
      workerData: { spec: { ...spec, ranks: [rank], job: { ...spec.job, shared: data } } },
      transferList,
    }).on('error', (error) => {
      console.error(error);
      process.exit(1);
    });
  }
} else {
  const { serveRank } = await import('./rank.mjs');
  await Promise.all(ranks.map((rank) => serveRank({ ...spec, rank })));
}
