// All ranks in one process, by createMemoryGroup.
import { createMemoryGroup } from '../../../packages/collectives/dist/index.js';
import { processGroupEngine } from '../process-group-engine.mjs';

let groups;

export async function open({ rank, worldSize, job }) {
  groups ??= createMemoryGroup(worldSize);
  return processGroupEngine({ name: 'memory', group: groups[rank], ...job.engine });
}
