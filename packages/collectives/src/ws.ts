export { type ConnectWsOptions, connectWs } from './transports/ws/connect-ws.js';
