// Ranks in one process, which createMemoryGroup joins.
import { processGroupEngine } from '../process-group-engine.mjs';

let groups;

export async function open({ rank, worldSize, job }) {
  groups ??= import(job.bundle ?? '../../../packages/collectives/dist/index.js').then(
    ({ createMemoryGroup }) => createMemoryGroup(worldSize),
  );
  return processGroupEngine({ name: 'memory', group: (await groups)[rank], ...job.engine });
}
