// The part of `joinElastic` that Node, pages and a simulator share.

import type { Clock } from '../../../clock.js';
import { JoinError, NO_RANK } from '../../../errors.js';
import { checkGroupOptions, type GroupOptions } from '../../../group/group-options.js';
import { ElasticMember, type Member } from '../../../membership/member.js';
import { PROOF_MS } from '../../../sockets/authenticate.js';
import { runDigest } from '../../../sockets/handshake.js';
import { LOOPBACK } from '../../../sockets/is-loopback.js';
import type { SocketPlatform } from '../../../sockets/socket-platform.js';
import type { HeartbeatSender } from '../heartbeat/heartbeat-sender.js';
import {
  checkJobOptions,
  type HostPort,
  JOIN_TIMEOUT_MS,
  type JobOptions,
  NO_RUN_ID,
  type Route,
  silencesOf,
} from '../join/job-options.js';
import type { JoinerOptions } from '../join/joiner-options.js';
import { CoordinatorSocket } from './coordinator-socket.js';
import { EpochSockets } from './epoch-sockets.js';

/**
 * The options of whoever joins an elastic job. `max`, `secret` and `runId` are the job's.
 */
export interface ElasticJobOptions
  extends Omit<GroupOptions, 'hosts' | 'clock'>,
    Pick<
      JobOptions,
      | 'secret'
      | 'runId'
      | 'joinTimeoutMs'
      | 'silenceMs'
      | 'linkSilenceMs'
      | 'heartbeat'
      | 'heartbeatMs'
      | 'heartbeatWorker'
    > {
  /** Where `serveElastic` listens. */
  readonly rendezvous: HostPort;
  /** The most members of an epoch; the same as the coordinator's. Default: whatever that says. */
  readonly max?: number | undefined;
  /**
   * Changes the address at which this process dials a member, by its id, or the rendezvous: for a
   * forwarded port, or a test's proxy.
   */
  readonly route?: Route;
}

/** What an elastic job runs on: Node, a page or a simulator. */
export interface ElasticPlatform {
  readonly sockets: SocketPlatform;
  readonly clock: Clock;
}

export interface MemberPlatform
  extends ElasticPlatform,
    Pick<JoinerOptions, 'schemeTo' | 'listen'> {
  /** See JoinerOptions. Default: five seconds. */
  readonly proofMs?: number | undefined;
  /** Signs of life beside the member's own thread; undefined where they come over its links. */
  startHeartbeats(heartbeatMs: number): Promise<HeartbeatSender | undefined>;
}

/** Stands for `max` where a process takes whatever the coordinator says. */
export const ANY_MAX = 0;

/** The options as those of a rank of a fixed job, for what both have. */
function rankOptionsOf(options: ElasticJobOptions) {
  const { max = 1, rendezvous } = options;
  return { ...options, rank: 0, worldSize: max, port: rendezvous.port };
}

/** Throws the mistakes of the caller, as JoinError or CollectiveUsageError. */
export function checkElasticJob(options: ElasticJobOptions): void {
  const { rank, worldSize, ...job } = rankOptionsOf(options);
  checkJobOptions({ ...job, rank, worldSize }, { hosts: false });
  checkGroupOptions(options, { rank, worldSize, call: 'joinElastic' });
}

/** Joins over these sockets, at this time. */
export async function joinElasticOver(
  options: ElasticJobOptions,
  { sockets, clock, schemeTo, listen, proofMs = PROOF_MS, startHeartbeats }: MemberPlatform,
): Promise<Member> {
  const { max, secret, rendezvous } = options;
  const joinerOptions: JoinerOptions = {
    ...silencesOf(rankOptionsOf(options)),
    rank: NO_RANK,
    worldSize: max ?? ANY_MAX,
    attempt: 0,
    run: runDigest(options.runId ?? NO_RUN_ID),
    secret,
    clock,
    rendezvous: { ...rendezvous, isHosted: false },
    schemeTo,
    listen,
    onListen: undefined,
    proofMs,
    joinTimeoutMs: options.joinTimeoutMs ?? JOIN_TIMEOUT_MS,
    route: options.route ?? ((_, to) => to),
  };
  const sender = await startHeartbeats(joinerOptions.heartbeatMs);
  const linker = new EpochSockets({
    groupOptions: { ...options, clock },
    options: joinerOptions,
    sockets,
    sender,
  });
  const coordinator = new CoordinatorSocket(joinerOptions, sockets, sender);
  try {
    const { socket, localHost = LOOPBACK } = await coordinator.open();
    await linker.listen(localHost).catch((error: Error) => {
      socket.terminate();
      throw new JoinError(rankOptionsOf(options), error.message);
    });
    await coordinator.enter(socket);
    const member = new ElasticMember(coordinator, linker);
    await member.join();
    return member;
  } catch (error) {
    await linker.close();
    throw error;
  }
}
