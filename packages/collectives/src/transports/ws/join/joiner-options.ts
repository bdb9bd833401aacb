// The options of a Joiner, which the `connectWs` of Node and that of pages give it.

import type { Clock } from '../../../clock.js';
import { JoinError } from '../../../errors.js';
import { type Hello, isSameRun } from '../../../sockets/handshake.js';
import type { HostPort, Route } from './job-options.js';
import type { PeerAddress } from './rendezvous-messages.js';

export interface JoinerOptions {
  readonly rank: number;
  readonly worldSize: number;
  readonly attempt: number;
  /** The digest of the run's id; see `runDigest`. */
  readonly run: Uint8Array;
  readonly secret: string;
  /** The address of the rendezvous. With `isHosted` this rank listens there for all ranks. */
  readonly rendezvous: HostPort & { readonly isHosted: boolean };
  /** 'wss' where a peer at this host is dialed by TLS, else 'ws'. */
  schemeTo(host: string): 'ws' | 'wss';
  /** False where this rank can't listen, or is told not to. */
  readonly listen: ListenWish | false;
  readonly joinTimeoutMs: number;
  /** The time of joining; that of calls is the endpoint's. */
  readonly clock: Clock;
  /** The milliseconds for each answer of a peer to which this rank authenticates. */
  readonly proofMs: number;
  readonly onListen: ((port: number) => void) | undefined;
  readonly route: Route;
  readonly heartbeatMs: number;
  /**
   * The silence after which a peer counts as lost: one with a heartbeat worker, and one without.
   */
  readonly silenceMs: number;
  readonly linkSilenceMs: number;
  /** Describes the peers that this rank's listener turned away. */
  readonly describeRefusals?: (() => string) | undefined;
}

/** The address at which a rank that doesn't host the rendezvous listens. */
export interface ListenWish {
  /** The host. Default: the interface by which it reaches the rendezvous. */
  readonly host?: string;
  /** The port. Default: a free one. */
  readonly port?: number;
  /**
   * The address at which others reach it, where that differs: a proxy, or a published port of a
   * container.
   */
  readonly advertise?: HostPort;
}

/** A loaded machine keeps a heartbeat waiting for nearly as long. */
const MIN_SILENCE_MS = 100;

/** The address at which a rank listens: the rendezvous' own where the rank has not named a host. */
export function addressOf(
  { host, port }: PeerAddress,
  { rendezvous }: Pick<JoinerOptions, 'rendezvous'>,
): HostPort {
  return host === null ? rendezvous : { host, port };
}

/** @throws {JoinError} where `silenceMs` would take every peer for lost */
export function checkSilence(options: {
  readonly rank: number;
  readonly worldSize: number;
  readonly silenceMs?: number;
}): void {
  const { rank, worldSize, silenceMs = MIN_SILENCE_MS } = options;
  if (!(silenceMs >= MIN_SILENCE_MS)) {
    const what = `expected silenceMs of at least ${MIN_SILENCE_MS}, got ${String(silenceMs)}`;
    throw new JoinError({ rank, worldSize }, `${what}.`);
  }
}

/**
 * The reason why a peer of another job, attempt or world size is turned away; undefined where it is
 * not.
 */
export function refusalOfJob(
  hello: Hello,
  job: { readonly worldSize: number; readonly attempt: number; readonly run: Uint8Array },
): string | undefined {
  if (!isSameRun(hello.run, job.run)) {
    return 'this is another run: its runId is not the same';
  }
  if (hello.worldSize !== job.worldSize) {
    return `world size is ${job.worldSize} here, not ${hello.worldSize}`;
  }
  if (hello.attempt !== job.attempt) {
    return `this is attempt ${job.attempt}, not ${hello.attempt}`;
  }
  return hello.rank < job.worldSize ? undefined : `there is no rank ${hello.rank}`;
}
