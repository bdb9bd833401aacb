// The page: starts a web worker a rank, gives each its place in the job, and shows what they say.
import { createShmJob } from '@shardweave/collectives/shm';

const log = document.getElementById('log');
for (const handle of createShmJob(2)) {
  const worker = new Worker('rank.js', { type: 'module' });
  worker.onmessage = ({ data }) => log.append(`${data}\n`);
  worker.onerror = ({ message }) => log.append(`${message}\n`);
  worker.postMessage(handle, handle.ports);
}
