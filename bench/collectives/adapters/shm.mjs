// Worker threads over shared memory, by createShmJob and connectShm; registered buffers come from
// the group.
import { connectShm, createShmJob } from '../../../packages/collectives/dist/shm.js';
import { processGroupEngine } from '../process-group-engine.mjs';

/** In the thread that starts the ranks: what each is handed. */
export function shareAmong(worldSize) {
  const seats = createShmJob(worldSize);
  return (rank) => ({ data: seats[rank], transferList: seats[rank].ports.filter(Boolean) });
}

export async function open({ job }) {
  const group = await connectShm(job.shared);
  const { isRegistered = false, ...engine } = job.engine ?? {};
  const memory = isRegistered
    ? {
        allocate: (byteLength) => group.allocate(byteLength),
        release: (bytes) => group.release(bytes),
      }
    : {};
  return processGroupEngine({ name: 'shm', group, ...memory, ...engine });
}
