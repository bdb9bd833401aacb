export {
  type ConnectWsPageOptions,
  connectWs,
  connectWsEndpoint,
} from './transports/ws/connect-ws-page.js';
export type { HostPort, JobOptions, Route } from './transports/ws/join/job-options.js';
