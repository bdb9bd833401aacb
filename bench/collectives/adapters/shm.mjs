// Ranks as worker threads over shared memory, which createShmJob and connectShm join. Registered
// buffers come from the group.
import { processGroupEngine } from '../process-group-engine.mjs';

const DIST = '../../../packages/collectives/dist/shm.js';

/** Runs in the thread that starts the ranks, and returns what each rank is given. */
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
