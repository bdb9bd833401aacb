// Joins the rank of a Node process to a job over WebSockets. joiner.ts does the work.

import { JoinError } from '../../errors.js';
import type { ProcessGroup } from '../../group/process-group.js';
import { type ListenSecurityOptions, schemeTo, securityOf } from '../../sockets/listen-security.js';
import { NodeSockets } from '../../sockets/node-sockets.js';
import { RefusalLog } from '../../sockets/refusal-log.js';
import { NodeHeartbeatSender } from './heartbeat/node-heartbeat-sender.js';
import type { JobOptions } from './join/job-options.js';
import { checkChoice, checkJoin, joinOverWs } from './join/join-over-ws.js';
import type { ListenWish } from './join/joiner-options.js';

/**
 * The options of a Node process that joins a job by `connectWs`: those of every joining rank, of
 * its listening port, and where the ranks meet.
 */
export interface ConnectWsOptions extends JobOptions, ListenSecurityOptions {
  /**
   * The host of the rendezvous. Rank 0, which hosts it by default, listens there. Default:
   * 127.0.0.1.
   */
  readonly address?: string;
  /**
   * 'elsewhere': another process runs `serveRendezvous`, and rank 0 visits it too. Default: 'rank
   * 0'.
   */
  readonly rendezvous?: 'rank 0' | 'elsewhere';
  /**
   * The address at which this rank listens, if it doesn't host the rendezvous. false: it only opens
   * links.
   */
  readonly listen?: ListenWish | false;
  /**
   * Called on rank 0, when it hosts, with the port that it listens on, for the launcher to pass on.
   */
  readonly onListen?: (port: number) => void;
}

/** Joins the job and resolves when every rank is linked to every other. Rejects with JoinError. */
export async function connectWs(options: ConnectWsOptions): Promise<ProcessGroup> {
  return (await connectWsEndpoint(options)).group;
}

/** Joins in the same way, and returns the endpoint too, for tests that kill a rank. */
export async function connectWsEndpoint(options: ConnectWsOptions) {
  const { rank, worldSize, tls, listen = {} } = options;
  const isHosted = rank === 0 && options.rendezvous !== 'elsewhere';
  checkJoin(options, { isHosted });
  checkChoice(options, 'rendezvous', ['rank 0', 'elsewhere']);
  checkChoice(options, 'encryption', ['auto', 'always', 'none']);
  if (tls !== undefined && (isHosted || listen !== false) && !(tls.key && tls.cert)) {
    throw new JoinError({ rank, worldSize }, 'expected tls.key and tls.cert: this rank listens.');
  }
  const refusals = new RefusalLog(options.onRefused);
  const security = securityOf({ ...options, onRefused: refusals.add });
  return joinOverWs(options, {
    isHosted,
    schemeTo: (host) => schemeTo(host, options),
    listen,
    onListen: options.onListen,
    proofMs: security.limits?.proofMs,
    describeRefusals: () => refusals.describe(),
    createPlatform: () => {
      const sockets = new NodeSockets(security);
      return {
        sockets,
        startHeartbeats: async (heartbeatMs) =>
          options.heartbeat === 'link'
            ? undefined
            : new NodeHeartbeatSender({ sockets, heartbeatMs, workerUrl: options.heartbeatWorker }),
      };
    },
  });
}
