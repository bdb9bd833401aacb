// The options of everything that listens: who may connect, and what strangers may cost. Node only.

import { isLoopback } from './is-loopback.js';
import { limitsFor, type WsLimits } from './limits.js';
import type { ListenerPolicy, ServerTls, TurnedAway } from './listener.js';
import { maxOpenFiles } from './max-open-files.js';
import type { Refusal } from './refusal-log.js';
import { tlsKeyOf } from './tls-psk.js';

/** Keys and certificates in PEM, as `node:tls` takes them. */
export interface WsTls extends Partial<ServerTls> {
  /** The authorities that signed the others' certificates. Default: those that Node knows. */
  readonly ca?: string | Buffer | readonly (string | Buffer)[];
  /** The name in the others' certificates, where they are dialed by address. */
  readonly servername?: string;
}

/**
 * TLS with a key from the job's secret, between Node processes. 'auto': between hosts, and on one
 * host where a peer asks for it. 'always': on one host, too. 'none': never, so anyone on the way
 * between two hosts can read what travels and change it unseen.
 */
export type Encryption = 'auto' | 'always' | 'none';

export interface ListenSecurityOptions {
  /**
   * The origins of pages that may join, if they know the secret. Default: none, because any web
   * page can open a socket to loopback.
   */
  readonly allowedOrigins?: readonly string[];
  /**
   * TLS with certificates on all ranks, which pages can speak, too. A rank that listens needs `key`
   * and `cert`. Default: TLS with the secret; see `encryption`.
   */
  readonly tls?: WsTls;
  /**
   * The encryption where there is no `tls`; the same on all ranks. 'auto': TLS with a key from the
   * secret between hosts, and none on loopback. 'always': on loopback, too. 'none': anyone on the
   * way between two hosts can read what travels and change it unseen. Default: 'auto'.
   */
  readonly encryption?: Encryption;
  /** The limits on strangers; see `WsLimits`. Default: those for the job's world size. */
  readonly limits?: Partial<WsLimits>;
  /**
   * Called with those who are turned away, and why, for the log: with some ten a second, the others
   * are counted. The job goes on unharmed.
   */
  readonly onRefused?: (refusal: Refusal) => void;
}

/** The same options for one job, with the secret that its processes know. */
export interface ListenSecurity {
  readonly secret: string;
  /** Default: those for a world of a few ranks. */
  readonly limits?: WsLimits | undefined;
  readonly allowedOrigins?: readonly string[] | undefined;
  readonly tls?: WsTls | undefined;
  readonly encryption?: Encryption | undefined;
  readonly onRefused?: ((turnedAway: TurnedAway) => void) | undefined;
}

/** The number of ranks to expect where the world size is unknown. */
const USUAL_WORLD_SIZE = 8;

/** The security options of a job, with limits on strangers for its number of ranks. */
export function securityOf(
  options: Omit<ListenSecurityOptions, 'onRefused'> &
    Pick<ListenSecurity, 'secret' | 'onRefused'> & { readonly worldSize: number },
): ListenSecurity {
  const { secret, worldSize, allowedOrigins, tls, encryption, onRefused } = options;
  const limits = limitsFor(worldSize, options.limits, maxOpenFiles());
  return { secret, allowedOrigins, tls, encryption, onRefused, limits };
}

/** The policy of all listeners of a process that listens. */
export function listenerPolicyOf(security: ListenSecurity): ListenerPolicy {
  const { secret, tls, encryption = 'auto', allowedOrigins = [] } = security;
  const { key, cert } = tls ?? {};
  return {
    limits: security.limits ?? limitsFor(USUAL_WORLD_SIZE),
    allowedOrigins,
    tls: key === undefined || cert === undefined ? undefined : { key, cert },
    pskKey: tls === undefined && encryption !== 'none' ? tlsKeyOf(secret) : undefined,
    mayBePlain: encryption !== 'always',
  };
}

/**
 * The scheme by which a peer at `host` is dialed. A name that may lead to this machine is taken for
 * another host, except for localhost, which is 127.0.0.1 here whatever the system says.
 */
export function schemeTo(
  host: string,
  { tls, encryption = 'auto' }: Pick<ListenSecurityOptions, 'tls' | 'encryption'>,
): 'ws' | 'wss' {
  const isPlain = encryption === 'none' || (encryption === 'auto' && isLoopback(host));
  return tls === undefined && isPlain ? 'ws' : 'wss';
}
