// The options by which ranks join a job, in Node and in pages alike, and their checks.

import { JoinError } from '../../../errors.js';
import type { GroupOptions } from '../../../group/group-options.js';

export interface JobOptions extends GroupOptions {
  readonly rank: number;
  readonly worldSize: number;
  /** The rendezvous' port. On the rank that hosts it, 0 takes a free one: see `onListen`. */
  readonly port: number;
  /**
   * Known to all ranks of the job and nobody else, made by the launcher. At least 16 characters.
   */
  readonly secret: string;
  /**
   * How often the job has been started before, from 0: ranks of a restarted job refuse those of the
   * attempt before. Default: 0.
   */
  readonly attempt?: number;
  /**
   * The run that this job is: ranks of another run refuse each other, though they may know the same
   * secret. Default: 'none'.
   */
  readonly runId?: string;
  /** Milliseconds for all ranks to come; Infinity: no limit. Default: 30 s. */
  readonly joinTimeoutMs?: number;
  /**
   * Milliseconds of silence after which a peer counts as lost: it is stopped or cut off. Signs of
   * life come from a worker thread, so a rank that computes is not silent. Default: 4 s. A process
   * that ended is noticed at once, by its closed connection.
   */
  readonly silenceMs?: number;
  /**
   * The same for peers whose signs come from their own thread, over the link: those that have no
   * heartbeat worker, or none that this rank can reach. Default: 60 s.
   */
  readonly linkSilenceMs?: number;
  /**
   * 'link': signs of life from the rank's own thread, over its links, judged by `linkSilenceMs`.
   * Spares a thread where many ranks live in one process, and takes one that computes for dead in
   * time. Default: 'worker'.
   */
  readonly heartbeat?: 'worker' | 'link';
  /**
   * Where the heartbeat worker is loaded from: the URL of
   * `@shardweave/collectives/heartbeat-worker`, for a page whose policy forbids workers from blobs.
   * Default: a text that this package carries.
   */
  readonly heartbeatWorker?: string | URL;
  /** Milliseconds between signs of life. Default: a sixteenth of silenceMs. */
  readonly heartbeatMs?: number;
  /** Changes where this rank dials a peer, or the rendezvous: a forwarded port, a test's proxy. */
  readonly route?: Route;
}

export interface HostPort {
  readonly host: string;
  readonly port: number;
}

export type Route = (
  target: number | 'rendezvous',
  address: HostPort,
) => HostPort | Promise<HostPort>;

/**
 * With a sign every 250 ms this names a lost peer 4 to 4.6 s after its last one, and a machine may
 * keep a worker thread waiting for seconds before that is mistaken for a death.
 */
const SILENCE_MS = 4000;
const LINK_SILENCE_MS = 60_000;
const BEATS_PER_SILENCE = 16;

/** The id of the run where the options give none. */
export const NO_RUN_ID = 'none';

export const JOIN_TIMEOUT_MS = 30_000;
/** A shorter secret could be guessed, and a joiner shows an HMAC of it to whoever listens. */
const MIN_SECRET_LENGTH = 16;

const MAX_U32 = 0xffffffff;

/** Throws the caller's mistakes as JoinError. */
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
