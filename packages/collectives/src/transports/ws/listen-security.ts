// Options of everything that listens: who may come, and what strangers may cost. Node only.

import type { Refusal } from './acceptor.js';
import { limitsFor, type WsLimits } from './limits.js';
import type { NodePlatformOptions, WsTls } from './node-platform.js';

export interface ListenSecurityOptions {
  /**
   * Pages of these origins may join, if they know the secret. Default: none, since any web page can
   * open a socket to loopback.
   */
  readonly allowedOrigins?: readonly string[];
  /** wss instead of ws, on all ranks. Who listens needs `key` and `cert`. */
  readonly tls?: WsTls;
  /** See `WsLimits` for the defaults. */
  readonly limits?: Partial<WsLimits>;
  /** Told of everybody who is turned away, and why: for the log. The job is unharmed. */
  readonly onRefused?: (refusal: Refusal) => void;
}

/** The same with defaults, as the platform takes them. */
export function securityOf(
  options: ListenSecurityOptions & { readonly secret: string; readonly worldSize: number },
): NodePlatformOptions {
  const { secret, worldSize, allowedOrigins, tls, onRefused } = options;
  return { secret, allowedOrigins, tls, onRefused, limits: limitsFor(worldSize, options.limits) };
}
