// Joins a page to an elastic job over native WebSockets: the `browser` side of `joinElastic`. A
// page can't listen: it links to processes of Node, and to other pages by way of the coordinator's.

import { systemClock } from '../../../clock.js';
import type { Member } from '../../../membership/member.js';
import { PageSockets } from '../../../sockets/page-sockets.js';
import { PageHeartbeatSender } from '../heartbeat/page-heartbeat-sender.js';
import { checkElasticJob, type ElasticJobOptions, joinElasticOver } from './join-elastic-over.js';

/** The options of a page, or a worker in it, that joins an elastic job. It only dials. */
export interface JoinElasticPageOptions extends ElasticJobOptions {
  /** Whether to use wss; the same on all members. Default: whether the page came by https. */
  readonly isSecure?: boolean;
}

/**
 * Joins the job and resolves when the coordinator has welcomed this page. Rejects with JoinError or
 * MembershipError. Coordinator and members in Node must allow the page's origin.
 */
export async function joinElastic(options: JoinElasticPageOptions): Promise<Member> {
  checkElasticJob(options);
  const isSecure = options.isSecure ?? globalThis.location?.protocol === 'https:';
  const sockets = new PageSockets();
  const { heartbeat, heartbeatWorker: workerUrl } = options;
  return joinElasticOver(options, {
    sockets,
    clock: systemClock,
    schemeTo: () => (isSecure ? 'wss' : 'ws'),
    listen: false,
    startHeartbeats: async (heartbeatMs) =>
      heartbeat === 'link'
        ? undefined
        : PageHeartbeatSender.start({ heartbeatMs, looks: sockets.looks, workerUrl }),
  });
}
