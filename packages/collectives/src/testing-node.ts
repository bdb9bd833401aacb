// A network for tests of transports over sockets. Node only.

export type { LinkShape } from './testing/network/delay-line.js';
export { ProxiedLinks, type ProxiedLinksOptions } from './testing/network/proxied-links.js';
export { type ProxyAddress, TcpProxy, type TcpProxyOptions } from './testing/network/tcp-proxy.js';
