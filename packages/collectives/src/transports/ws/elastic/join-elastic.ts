// Joins a Node process to an elastic job over WebSockets, at any time.

import { systemClock } from '../../../clock.js';
import type { Member } from '../../../membership/member.js';
import {
  type ListenSecurityOptions,
  schemeTo,
  securityOf,
} from '../../../sockets/listen-security.js';
import { NodeSockets } from '../../../sockets/node-sockets.js';
import { RefusalLog } from '../../../sockets/refusal-log.js';
import { NodeHeartbeatSender } from '../heartbeat/node-heartbeat-sender.js';
import type { ListenWish } from '../join/joiner-options.js';
import { checkElasticJob, type ElasticJobOptions, joinElasticOver } from './join-elastic-over.js';

/** The options of a Node process that joins an elastic job. */
export interface JoinElasticOptions extends ElasticJobOptions, ListenSecurityOptions {
  /**
   * The address at which this process listens for the others. false: it only opens links, and the
   * coordinator's process joins it to others that do so. Default: a free port.
   */
  readonly listen?: ListenWish | false;
}

/** The number of members for which strangers are limited where `max` is not known. */
const USUAL_MAX = 64;

/**
 * Resolves when the coordinator has welcomed this process, which is a member of the job's epochs
 * from its first `reform` on. Rejects with JoinError where there is no coordinator, or another job,
 * and with MembershipError where the job has ended.
 */
export async function joinElastic(options: JoinElasticOptions): Promise<Member> {
  checkElasticJob(options);
  const { max: worldSize = USUAL_MAX, listen = {} } = options;
  const refusals = new RefusalLog(options.onRefused);
  const security = securityOf({ ...options, worldSize, onRefused: refusals.add });
  const sockets = new NodeSockets(security);
  return joinElasticOver(options, {
    sockets,
    clock: systemClock,
    schemeTo: (host) => schemeTo(host, options),
    listen,
    proofMs: security.limits?.proofMs,
    startHeartbeats: async (heartbeatMs) =>
      options.heartbeat === 'link'
        ? undefined
        : new NodeHeartbeatSender({ sockets, heartbeatMs, workerUrl: options.heartbeatWorker }),
  });
}
