export {
  type ConnectShmOptions,
  connectShm,
  connectShmEndpoint,
} from './transports/shm/connect-shm.js';
export { createShmJob, type ShmJobOptions, type ShmSeat } from './transports/shm/shm-seat.js';
