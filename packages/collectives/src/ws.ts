export type { Encryption, Refusal } from './transports/ws/acceptor.js';
export {
  type ConnectWsOptions,
  connectWs,
  connectWsEndpoint,
} from './transports/ws/connect-ws.js';
export type { JobOptions } from './transports/ws/job-options.js';
export type { ListenWish } from './transports/ws/joiner-options.js';
export type { WsLimits } from './transports/ws/limits.js';
export type { WsTls } from './transports/ws/node-platform.js';
export {
  type RendezvousServer,
  type ServeRendezvousOptions,
  serveRendezvous,
} from './transports/ws/serve-rendezvous.js';
