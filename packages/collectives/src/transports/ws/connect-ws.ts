// A rank in a Node process joins a job over WebSockets. See joiner.ts for how.

import { JoinError } from '../../errors.js';
import type { ProcessGroup } from '../../group/process-group.js';
import { type ListenSecurityOptions, schemeTo, securityOf } from '../../sockets/listen-security.js';
import { NodeSockets } from '../../sockets/node-sockets.js';
import { RefusalLog } from '../../sockets/refusal-log.js';
import { NodeHeartbeatSender } from './heartbeat/node-heartbeat-sender.js';
import type { JobOptions } from './join/job-options.js';
import { checkChoice, checkJoin, joinOverWs } from './join/join-over-ws.js';
import type { ListenWish } from './join/joiner-options.js';

export interface ConnectWsOptions extends JobOptions, ListenSecurityOptions {
  /**
   * Where the rendezvous is; rank 0, which hosts it by default, listens there. Default: 127.0.0.1.
   */
  readonly address?: string;
  /**
   * 'elsewhere': another process runs `serveRendezvous`, and rank 0 visits it too. Default: 'rank
   * 0'.
   */
  readonly rendezvous?: 'rank 0' | 'elsewhere';
  /** Where this rank listens, if it doesn't host the rendezvous. False: it only opens links. */
  readonly listen?: ListenWish | false;
  /** On rank 0, when it hosts: the port it listens on, for the launcher to pass on. */
  readonly onListen?: (port: number) => void;
}

/** Joins the job and resolves when every rank is linked to every other. Rejects with JoinError. */
export async function connectWs(options: ConnectWsOptions): Promise<ProcessGroup> {
  return (await connectWsEndpoint(options)).group;
}

/** Does the same, and gives the endpoint too, for tests that kill a rank. */
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
