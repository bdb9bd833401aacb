// The coordinator of an elastic job in a Node process: the launcher's, or one of its own. It is no
// rank, and computes nothing.

import { systemClock } from '../../../clock.js';
import { JoinError, NO_RANK } from '../../../errors.js';
import type {
  CoordinatorOptions,
  CoordinatorStatus,
} from '../../../membership/coordinator-options.js';
import { type Hello, isSameRun, RENDEZVOUS_TARGET, runDigest } from '../../../sockets/handshake.js';
import { LOOPBACK } from '../../../sockets/is-loopback.js';
import { type ListenSecurityOptions, securityOf } from '../../../sockets/listen-security.js';
import { NodeSockets } from '../../../sockets/node-sockets.js';
import { RefusalLog } from '../../../sockets/refusal-log.js';
import type { SocketListener } from '../../../sockets/socket-platform.js';
import { checkJobOptions, NO_RUN_ID } from '../join/job-options.js';
import { isRelayed } from '../join/relay.js';
import { CoordinatorHall } from './coordinator-hall.js';
import { ANY_MAX, type ElasticPlatform } from './join-elastic-over.js';
import { MAX_ABOUT_BYTES, MAX_MEMBERS } from './parse-membership-message.js';

/** The options of `serveElastic`: who may be in the job, and where its members meet. */
export interface ServeElasticOptions extends CoordinatorOptions, ListenSecurityOptions {
  /** The job's secret, of at least 16 characters, which only its processes know. */
  readonly secret: string;
  /** See `JobOptions`. */
  readonly runId?: string;
  /** The address on which it listens. Default: 127.0.0.1. */
  readonly address?: string;
  /** The port on which it listens. Default: 0, which takes a free one. */
  readonly port?: number;
  /** A text of at most 32 KiB that members have as `about`, such as what the job computes. */
  readonly about?: string;
}

/** The coordinator of an elastic job. */
export interface ElasticServer {
  readonly port: number;
  readonly status: CoordinatorStatus;
  /** Ends the job for all who are in it, with a reason, and stops listening. */
  close(reason?: string): Promise<void>;
}

/**
 * Resolves when it listens, and rejects with JoinError where it can't. It goes on until `close`.
 */
export async function serveElastic(options: ServeElasticOptions): Promise<ElasticServer> {
  const { min, max, secret, port = 0 } = options;
  checkJobOptions({ secret, rank: 0, worldSize: max, port, ...runOf(options) }, { hosts: true });
  if (!Number.isInteger(min) || min < 1 || min > max || max > MAX_MEMBERS) {
    const what = `expected 1 <= min <= max <= ${MAX_MEMBERS}, got min ${min} and max ${max}.`;
    throw new JoinError({ rank: 0, worldSize: max }, what);
  }
  const aboutBytes = new TextEncoder().encode(options.about).byteLength;
  if (aboutBytes > MAX_ABOUT_BYTES) {
    const what = `about has at most ${MAX_ABOUT_BYTES} bytes, got ${aboutBytes}.`;
    throw new JoinError({ rank: 0, worldSize: max }, what);
  }
  const refusals = new RefusalLog(options.onRefused);
  const security = securityOf({ ...options, worldSize: max, onRefused: refusals.add });
  return serveElasticOn(options, { sockets: new NodeSockets(security), clock: systemClock });
}

/** Listens on these sockets, at this time. */
export async function serveElasticOn(
  options: ServeElasticOptions,
  { sockets, clock }: ElasticPlatform,
): Promise<ElasticServer> {
  const { max, address: host = LOOPBACK, port = 0 } = options;
  const hall = new CoordinatorHall(options, clock);
  const run = runDigest(options.runId ?? NO_RUN_ID);
  const refusalOf = (hello: Hello): string | undefined => {
    if (!isSameRun(hello.run, run)) {
      return 'this is another run: its runId is not the same';
    }
    if (isRelayed(hello)) {
      return hall.relays.refusalOf(hello);
    }
    const isBeating = hello.role === 'heartbeat' && hello.target === RENDEZVOUS_TARGET;
    const isJoining = hello.role === 'rendezvous' && hello.rank === NO_RANK;
    if (!isBeating && !isJoining) {
      return 'this job is elastic: join it by joinElastic';
    }
    const isMeant = hello.worldSize === max || hello.worldSize === ANY_MAX;
    return isMeant ? undefined : `max is ${max} here, not ${hello.worldSize}`;
  };
  let listener: SocketListener;
  try {
    listener = await sockets.listen!({
      host,
      port,
      refusalOf,
      onPeer: (hello, socket, from) => hall.onPeer(hello, socket, from),
    });
  } catch (error) {
    hall.stop();
    throw new JoinError({ rank: 0, worldSize: max }, (error as Error).message);
  }
  return {
    port: listener.port,
    get status() {
      return hall.status;
    },
    close: async (reason = 'its coordinator was closed') => {
      listener.close();
      await hall.close(reason);
    },
  };
}

function runOf({ runId }: ServeElasticOptions): { readonly runId?: string } {
  return runId === undefined ? {} : { runId };
}
