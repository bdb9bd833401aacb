// Worker threads over shared memory, by createShmJob and connectShm; registered buffers come from
// the group.
import { processGroupEngine } from '../process-group-engine.mjs';

const DIST = '../../../packages/collectives/dist/shm.js';

/** In the thread that starts the ranks: what each is handed. */
export async function shareAmong(worldSize, job) {
  const { createShmJob } = await import(job.bundle ?? DIST);
  const handles = createShmJob(worldSize);
  return (rank) => ({ data: handles[rank], transferList: handles[rank].ports.filter(Boolean) });
}

export async function open({ job }) {
  const { connectShm } = await import(job.bundle ?? DIST);
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
