// The options by which ranks join a job, in Node and in pages alike, and their checks.

import { JoinError } from '../../../errors.js';
import type { GroupOptions } from '../../../group/group-options.js';

/**
 * The options by which a rank joins a job over WebSockets, in Node and in a page alike.
 * `worldSize`, `secret`, `attempt` and `runId` must be the same on all ranks.
 */
export interface JobOptions extends GroupOptions {
  readonly rank: number;
  readonly worldSize: number;
  /** The port of the rendezvous. On the rank that hosts it, 0 takes a free one; see `onListen`. */
  readonly port: number;
  /**
   * The job's secret, of at least 16 characters, which the launcher makes and only the job's ranks
   * know.
   */
  readonly secret: string;
  /**
   * The number of earlier starts of the job: ranks of a restarted job refuse those of the attempt
   * before. Default: 0.
   */
  readonly attempt?: number;
  /**
   * The name of the run: ranks of another run refuse each other, though they may know the same
   * secret. Default: 'none'.
   */
  readonly runId?: string;
  /** The milliseconds in which all ranks have to come; Infinity: no limit. Default: 30 s. */
  readonly joinTimeoutMs?: number;
  /**
   * The milliseconds of silence after which a peer counts as lost, because it is stopped or cut
   * off. Signs of life come from a worker thread, so a rank that computes is not silent. A process
   * that ended is noticed at once, by its closed connection. Default: 4 s.
   */
  readonly silenceMs?: number;
  /**
   * The same limit for peers whose signs of life come from their own thread, over the link: those
   * that have no heartbeat worker, or none that this rank can reach. Default: 60 s.
   */
  readonly linkSilenceMs?: number;
  /**
   * 'link': signs of life come from the rank's own thread, over its links, and `linkSilenceMs` is
   * the limit. That spares a thread where many ranks live in one process, but a rank that computes
   * for too long is taken for dead. Default: 'worker'.
   */
  readonly heartbeat?: 'worker' | 'link';
  /**
   * The URL from which the heartbeat worker is loaded: that of
   * `@shardweave/collectives/heartbeat-worker`, for a page whose policy forbids workers from blobs.
   * Default: a text that this package contains.
   */
  readonly heartbeatWorker?: string | URL;
  /** The milliseconds between signs of life. Default: a sixteenth of silenceMs. */
  readonly heartbeatMs?: number;
  /**
   * Changes the address at which this rank dials a peer, or the rendezvous: for a forwarded port,
   * or a test's proxy.
   */
  readonly route?: Route;
}

/** A host name or IP, and a TCP port. */
export interface HostPort {
  readonly host: string;
  readonly port: number;
}

/**
 * Tells the address at which a peer of that rank, or the rendezvous, is dialled instead of its own.
 */
export type Route = (
  target: number | 'rendezvous',
  address: HostPort,
) => HostPort | Promise<HostPort>;

/**
 * With a sign every 250 ms this names a lost peer 4 to 4.6 s after its last one. A machine may keep
 * a worker thread waiting for seconds before that is mistaken for a death.
 */
const SILENCE_MS = 4000;
const LINK_SILENCE_MS = 60_000;
const BEATS_PER_SILENCE = 16;

/** The id of the run where the options give none. */
export const NO_RUN_ID = 'none';

export const JOIN_TIMEOUT_MS = 30_000;
/**
 * A shorter secret could be guessed, for a joiner shows an HMAC of it to whatever process listens.
 */
const MIN_SECRET_LENGTH = 16;

const MAX_U32 = 0xffffffff;

/** Throws JoinError for mistakes of the caller. */
export function checkJobOptions(options: JobOptions, { hosts }: { readonly hosts: boolean }): void {
  const { rank, worldSize, secret, port, attempt = 0, runId = NO_RUN_ID } = options;
  const fail = (message: string) => {
    throw new JoinError({ rank, worldSize }, message);
  };
  const isCount = (x: number, from: number, to: number) =>
    Number.isInteger(x) && x >= from && x <= to;
  if (!isCount(worldSize, 1, MAX_U32) || !isCount(rank, 0, worldSize - 1)) {
    fail(`expected a rank below a positive world size, got rank ${rank} of ${worldSize}.`);
  }
  if (!isCount(port, hosts || worldSize === 1 ? 0 : 1, 65_535)) {
    fail(`expected the rendezvous' port, got ${port}.`);
  }
  if (!isCount(attempt, 0, MAX_U32)) {
    fail(`expected an attempt from 0, got ${attempt}.`);
  }
  if (typeof runId !== 'string') {
    fail(`expected runId as text, got ${String(runId)}.`);
  }
  if (typeof secret !== 'string' || secret.length < MIN_SECRET_LENGTH) {
    const got = typeof secret === 'string' ? secret.length : 'none';
    fail(`expected a secret of at least ${MIN_SECRET_LENGTH} characters, got ${got}.`);
  }
}

/** Completes the limits on silence by their defaults. */
export function silencesOf(options: JobOptions) {
  const { silenceMs = SILENCE_MS, linkSilenceMs = LINK_SILENCE_MS } = options;
  const heartbeatMs = options.heartbeatMs ?? silenceMs / BEATS_PER_SILENCE;
  if (!(heartbeatMs > 0) || heartbeatMs * 2 > Math.min(silenceMs, linkSilenceMs)) {
    const { rank, worldSize } = options;
    throw new JoinError(
      { rank, worldSize },
      `expected at least two heartbeats of ${heartbeatMs} ms in a silence of ${silenceMs} ms.`,
    );
  }
  return { silenceMs, linkSilenceMs, heartbeatMs };
}
