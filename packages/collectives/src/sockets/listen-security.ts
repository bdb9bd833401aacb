// Options of everything that listens: who may come, and what strangers may cost. Node only.

import type { NodePlatformOptions, WsTls } from '../transports/ws/node-platform.js';
import type { Encryption, Refusal } from './acceptor.js';
import { isLoopback } from './is-loopback.js';
import { limitsFor, type WsLimits } from './limits.js';

export interface ListenSecurityOptions {
  /**
   * Pages of these origins may join, if they know the secret. Default: none, since any web page can
   * open a socket to loopback.
   */
  readonly allowedOrigins?: readonly string[];
  /**
   * TLS by certificates on all ranks, which pages can speak, too. Who listens needs `key` and `cert`.
   * Default: TLS by the secret, see `encryption`.
   */
  readonly tls?: WsTls;
  /**
   * Where there is no `tls`, on all ranks. 'auto': TLS by a key from the secret between hosts, none on
   * loopback. 'always': on loopback, too. 'none': what travels between hosts can be read and changed
   * unseen by whoever is on the way. Default: 'auto'.
   */
  readonly encryption?: Encryption;
  /** See `WsLimits` for the defaults. */
  readonly limits?: Partial<WsLimits>;
  /** Told of everybody who is turned away, and why: for the log. The job is unharmed. */
  readonly onRefused?: (refusal: Refusal) => void;
}

/** The same with defaults, as the platform takes them. */
export function securityOf(
  options: ListenSecurityOptions & { readonly secret: string; readonly worldSize: number },
): NodePlatformOptions {
  const { secret, worldSize, allowedOrigins, tls, encryption, onRefused } = options;
  const limits = limitsFor(worldSize, options.limits);
  return { secret, allowedOrigins, tls, encryption, onRefused, limits };
}

/** How a peer at `host` is dialed: whether a name leads to this machine is not known, and taken for no. */
export function schemeTo(
  host: string,
  { tls, encryption = 'auto' }: Pick<ListenSecurityOptions, 'tls' | 'encryption'>,
): 'ws' | 'wss' {
  const isPlain = encryption === 'none' || (encryption === 'auto' && isLoopback(host));
  return tls === undefined && isPlain ? 'ws' : 'wss';
}
