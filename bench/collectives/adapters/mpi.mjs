// Ranks as processes under mpirun, which connectMpi joins. Open MPI moves the bytes.
import { connectMpi } from '../../../packages/collectives/dist/mpi.js';
import { processGroupEngine } from '../process-group-engine.mjs';

export async function open({ job }) {
  const group = await connectMpi();
  return processGroupEngine({ name: 'mpi', group, ...job.engine });
}
