export {
  type ConnectWsOptions,
  connectWs,
  connectWsEndpoint,
} from './transports/ws/connect-ws.js';
