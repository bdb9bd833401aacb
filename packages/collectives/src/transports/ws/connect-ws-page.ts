// Joins a page's rank to a job over native WebSockets: the `browser` side of `connectWs`. A page
// can't listen, so it links directly to Node ranks, and to other pages through the rendezvous'
// process.

import type { ProcessGroup } from '../../group/process-group.js';
import { PageSockets } from '../../sockets/page-sockets.js';
import { PageHeartbeatSender } from './heartbeat/page-heartbeat-sender.js';
import type { JobOptions } from './join/job-options.js';
import { checkJoin, joinOverWs } from './join/join-over-ws.js';

/** The options of a page, or a worker in it, that joins a job by `connectWs`. It only dials. */
export interface ConnectWsPageOptions extends JobOptions {
  /** The host of the rendezvous: rank 0 in Node, or `serveRendezvous`. Default: 127.0.0.1. */
  readonly address?: string;
  /** Whether to use wss; the same on all ranks. Default: whether the page itself came by https. */
  readonly isSecure?: boolean;
}

/**
 * Joins the job and resolves when every rank is linked to every other. Rejects with JoinError. The
 * rendezvous must allow the page's origin.
 */
export async function connectWs(options: ConnectWsPageOptions): Promise<ProcessGroup> {
  return (await connectWsEndpoint(options)).group;
}

/** Joins in the same way, and returns the endpoint too, for tests that kill a rank. */
export async function connectWsEndpoint(options: ConnectWsPageOptions) {
  const isHosted = false;
  const isSecure = options.isSecure ?? globalThis.location?.protocol === 'https:';
  checkJoin(options, { isHosted });
  return joinOverWs(options, {
    isHosted,
    schemeTo: () => (isSecure ? 'wss' : 'ws'),
    listen: false,
    onListen: undefined,
    createPlatform: () => {
      const sockets = new PageSockets();
      const { heartbeat, heartbeatWorker: workerUrl } = options;
      return {
        sockets,
        startHeartbeats: async (heartbeatMs) =>
          heartbeat === 'link'
            ? undefined
            : PageHeartbeatSender.start({ heartbeatMs, looks: sockets.looks, workerUrl }),
      };
    },
  });
}
