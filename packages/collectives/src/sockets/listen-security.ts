// Options of everything that listens: who may come, and what strangers may cost. Node only.

import type { DoorPolicy, Refusal, ServerTls } from './door.js';
import { isLoopback } from './is-loopback.js';
import { limitsFor, type WsLimits } from './limits.js';
import { tlsKeyOf } from './tls-psk.js';

/** PEM, as `node:tls` takes them. */
export interface WsTls extends Partial<ServerTls> {
  /** Who signed the others' certificates. Default: the authorities that Node knows. */
  readonly ca?: string | Buffer | readonly (string | Buffer)[];
  /** The name in the others' certificates, where they are dialed by address. */
  readonly servername?: string;
}

/**
 * TLS by a key from the job's secret, between Node processes. 'auto': between hosts, and where a
 * peer of this host asks for it; 'always'; 'none': whoever is on the way between two hosts can read
 * what travels and change it unseen.
 */
export type Encryption = 'auto' | 'always' | 'none';

export interface ListenSecurityOptions {
  /**
   * Pages of these origins may join, if they know the secret. Default: none, since any web page can
   * open a socket to loopback.
   */
  readonly allowedOrigins?: readonly string[];
  /**
   * TLS by certificates on all ranks, which pages can speak, too. Who listens needs `key` and
   * `cert`. Default: TLS by the secret, see `encryption`.
   */
  readonly tls?: WsTls;
  /**
   * Where there is no `tls`, on all ranks. 'auto': TLS by a key from the secret between hosts, none
   * on loopback. 'always': on loopback, too. 'none': what travels between hosts can be read and
   * changed unseen by whoever is on the way. Default: 'auto'.
   */
  readonly encryption?: Encryption;
  /** See `WsLimits` for the defaults. */
  readonly limits?: Partial<WsLimits>;
  /** Told of everybody who is turned away, and why: for the log. The job is unharmed. */
  readonly onRefused?: (refusal: Refusal) => void;
}

/** The same for one job, whose secret its processes know. */
export interface ListenSecurity {
  readonly secret: string;
  /** Default: those for a world of a few ranks. */
  readonly limits?: WsLimits | undefined;
  readonly allowedOrigins?: readonly string[] | undefined;
  readonly tls?: WsTls | undefined;
  readonly encryption?: Encryption | undefined;
  readonly onRefused?: ((refusal: Refusal) => void) | undefined;
}

/** A few ranks. */
const USUAL_WORLD_SIZE = 8;

/** What a job of that many ranks may be asked by strangers. */
export function securityOf(
  options: ListenSecurityOptions & { readonly secret: string; readonly worldSize: number },
): ListenSecurity {
  const { secret, worldSize, allowedOrigins, tls, encryption, onRefused } = options;
  const limits = limitsFor(worldSize, options.limits);
  return { secret, allowedOrigins, tls, encryption, onRefused, limits };
}

/** What a process that listens has its doors do. */
export function doorPolicyOf(security: ListenSecurity): DoorPolicy {
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
 * How a peer at `host` is dialed: whether a name leads to this machine is not known, and taken for
 * no.
 */
export function schemeTo(
  host: string,
  { tls, encryption = 'auto' }: Pick<ListenSecurityOptions, 'tls' | 'encryption'>,
): 'ws' | 'wss' {
  const isPlain = encryption === 'none' || (encryption === 'auto' && isLoopback(host));
  return tls === undefined && isPlain ? 'ws' : 'wss';
}
