// A rendezvous in a Node process of its own, with the relay between ranks that can't listen, for
// jobs whose ranks are all pages.

import { JoinError } from '../../../errors.js';
import { checkGroupOptions } from '../../../group/group-options.js';
import type { Acceptor } from '../../../sockets/acceptor.js';
import { RENDEZVOUS_TARGET, runDigest } from '../../../sockets/handshake.js';
import { LOOPBACK } from '../../../sockets/is-loopback.js';
import { type ListenSecurityOptions, securityOf } from '../../../sockets/listen-security.js';
import { NodeSockets } from '../../../sockets/node-sockets.js';
import { RefusalLog } from '../../../sockets/refusal-log.js';
import { checkJobOptions, JOIN_TIMEOUT_MS, NO_RUN_ID } from './job-options.js';
import { refusalOfJob } from './joiner-options.js';
import { isRelayed, Relay } from './relay.js';
import { Rendezvous } from './rendezvous.js';
import { hostMember } from './rendezvous-host.js';

/** The options of `serveRendezvous`: the job that it serves, and where it listens. */
export interface ServeRendezvousOptions extends ListenSecurityOptions {
  readonly worldSize: number;
  /** The job's secret, of at least 16 characters, which only its ranks know. */
  readonly secret: string;
  /** See `JobOptions`. */
  readonly attempt?: number;
  /** See `JobOptions`. */
  readonly runId?: string;
  /** The address on which it listens. Default: 127.0.0.1. */
  readonly address?: string;
  /** The port on which it listens. Default: 0, which takes a free one. */
  readonly port?: number;
  /** The milliseconds in which all ranks have to come. Default: 30 s. */
  readonly joinTimeoutMs?: number;
}

/**
 * A rendezvous in a process of its own, which is not a rank. It also relays between ranks of which
 * neither can listen, as pages.
 */
export interface RendezvousServer {
  readonly port: number;
  /** Resolves when the job has formed; rejects with the reason where it does not. */
  readonly formed: Promise<void>;
  /**
   * Stops listening. Links go on, relayed ones included; those end with this process, which they
   * keep alive.
   */
  close(): void;
}

/**
 * Resolves when it listens, and rejects with JoinError where it can't. It goes on listening until
 * `close`.
 */
export async function serveRendezvous(options: ServeRendezvousOptions): Promise<RendezvousServer> {
  const { worldSize, attempt = 0, runId, address: host = LOOPBACK, port = 0 } = options;
  checkJobOptions({ ...options, rank: 0, port }, { hosts: true });
  const job = { worldSize, attempt, run: runDigest(runId ?? NO_RUN_ID) };
  const refusals = new RefusalLog(options.onRefused);
  let acceptor: Acceptor | undefined;
  checkGroupOptions(options, { rank: 0, worldSize, call: 'serveRendezvous' });
  const rendezvous = new Rendezvous({
    worldSize,
    joinTimeoutMs: options.joinTimeoutMs ?? JOIN_TIMEOUT_MS,
    circumstances: () =>
      `it listened on ${host}:${acceptor?.port}; ${refusals.describe() || 'nobody was refused'}`,
  });
  const relay = new Relay(rendezvous.formed);
  const sockets = new NodeSockets(securityOf({ ...options, onRefused: refusals.add }));
  const listening = sockets.listen({
    host,
    port,
    refusalOf: (hello) => {
      const refusal = refusalOfJob(hello, job);
      if (refusal !== undefined) {
        return refusal;
      }
      if (isRelayed(hello)) {
        return relay.refusalOf(hello);
      }
      if (hello.role !== 'rendezvous' || hello.target !== RENDEZVOUS_TARGET) {
        return `no ${hello.role} here`;
      }
      return rendezvous.refusalOf(hello.rank);
    },
    onPeer: (hello, socket, from) => {
      if (isRelayed(hello)) {
        relay.onPeer(hello, socket);
      } else {
        void hostMember(rendezvous, hello.rank, socket, from);
      }
    },
  });
  try {
    acceptor = await listening;
  } catch (error) {
    rendezvous.close();
    throw new JoinError({ rank: 0, worldSize }, (error as Error).message);
  }
  const { port: listeningPort } = acceptor;
  return {
    port: listeningPort,
    formed: rendezvous.formed,
    close: () => {
      acceptor?.close();
      rendezvous.close();
      relay.close();
    },
  };
}
