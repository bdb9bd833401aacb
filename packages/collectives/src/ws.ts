export type { WsLimits } from './sockets/limits.js';
export type { Encryption, WsTls } from './sockets/listen-security.js';
export type { Refusal } from './sockets/refusal-log.js';
export {
  type ConnectWsOptions,
  connectWs,
  connectWsEndpoint,
} from './transports/ws/connect-ws.js';
export type { HostPort, JobOptions, Route } from './transports/ws/join/job-options.js';
export type { ListenWish } from './transports/ws/join/joiner-options.js';
export {
  type RendezvousServer,
  type ServeRendezvousOptions,
  serveRendezvous,
} from './transports/ws/join/serve-rendezvous.js';
