export {
  type ConnectShmOptions,
  connectShm,
  connectShmEndpoint,
} from './transports/shm/connect-shm.js';
export { createShmJob, type ShmJobOptions, type ShmRankHandle } from './transports/shm/shm-job.js';
