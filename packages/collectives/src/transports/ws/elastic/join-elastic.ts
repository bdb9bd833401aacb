// Joins a Node process to an elastic job over WebSockets, at any time.

import { type Clock, systemClock } from '../../../clock.js';
import { JoinError } from '../../../errors.js';
import { checkGroupOptions, type GroupOptions } from '../../../group/group-options.js';
import { ElasticMember, type Member } from '../../../membership/member.js';
import { PROOF_MS } from '../../../sockets/authenticate.js';
import { runDigest } from '../../../sockets/handshake.js';
import { LOOPBACK } from '../../../sockets/is-loopback.js';
import {
  type ListenSecurityOptions,
  schemeTo,
  securityOf,
} from '../../../sockets/listen-security.js';
import { NodeSockets } from '../../../sockets/node-sockets.js';
import { RefusalLog } from '../../../sockets/refusal-log.js';
import type { SocketPlatform } from '../../../sockets/socket-platform.js';
import type { HeartbeatSender } from '../heartbeat/heartbeat-sender.js';
import { NodeHeartbeatSender } from '../heartbeat/node-heartbeat-sender.js';
import {
  checkJobOptions,
  type HostPort,
  JOIN_TIMEOUT_MS,
  type JobOptions,
  NO_RUN_ID,
  type Route,
  silencesOf,
} from '../join/job-options.js';
import type { JoinerOptions, ListenWish } from '../join/joiner-options.js';
import { CoordinatorSocket } from './coordinator-socket.js';
import { EpochSockets } from './epoch-sockets.js';

/**
 * The options of a process that joins an elastic job. `max`, `secret` and `runId` are the job's.
 */
export interface JoinElasticOptions
  extends Omit<GroupOptions, 'hosts' | 'clock'>,
    ListenSecurityOptions,
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
  /** The address at which this process listens for the others. Default: a free port. */
  readonly listen?: ListenWish;
  /**
   * Changes the address at which this process dials a member, by its id, or the rendezvous: for a
   * forwarded port, or a test's proxy.
   */
  readonly route?: Route;
}

/** The number of members for which strangers are limited where `max` is not known. */
const USUAL_MAX = 64;

/** Stands for `max` where a process takes whatever the coordinator says. */
export const ANY_MAX = 0;

/** What an elastic job runs on: Node, or a simulator. */
export interface ElasticPlatform {
  readonly sockets: SocketPlatform;
  readonly clock: Clock;
}

export interface MemberPlatform extends ElasticPlatform {
  /** See JoinerOptions. Default: five seconds. */
  readonly proofMs?: number | undefined;
  /** Signs of life beside the member's own thread; undefined where they come over its links. */
  startHeartbeats(heartbeatMs: number): HeartbeatSender | undefined;
}

/** Stands for the rank of a process that speaks to a coordinator, where nobody has a rank. */
export const NO_RANK = 0xffffffff;

/**
 * Resolves when the coordinator has welcomed this process, which is a member of the job's epochs
 * from its first `reform` on. Rejects with JoinError where there is no coordinator, or another job,
 * and with MembershipError where the job has ended.
 */
export async function joinElastic(options: JoinElasticOptions): Promise<Member> {
  const { max, rendezvous } = options;
  const job = { ...options, rank: 0, worldSize: max ?? 1, port: rendezvous.port };
  checkJobOptions(job, { hosts: false });
  checkGroupOptions(options, { rank: 0, worldSize: job.worldSize, call: 'joinElastic' });
  const refusals = new RefusalLog(options.onRefused);
  const worldSize = max ?? USUAL_MAX;
  const security = securityOf({ ...options, worldSize, onRefused: refusals.add });
  const sockets = new NodeSockets(security);
  return joinElasticOn(options, {
    sockets,
    clock: systemClock,
    proofMs: security.limits?.proofMs,
    startHeartbeats: (heartbeatMs) =>
      options.heartbeat === 'link'
        ? undefined
        : new NodeHeartbeatSender({ sockets, heartbeatMs, workerUrl: options.heartbeatWorker }),
  });
}

/** Joins over these sockets, at this time. */
export async function joinElasticOn(
  options: JoinElasticOptions,
  { sockets, clock, proofMs = PROOF_MS, startHeartbeats }: MemberPlatform,
): Promise<Member> {
  const { max, secret, rendezvous, listen = {} } = options;
  const joinerOptions: JoinerOptions = {
    ...silencesOf({ ...options, rank: 0, worldSize: max ?? 1, port: rendezvous.port }),
    rank: NO_RANK,
    worldSize: max ?? ANY_MAX,
    attempt: 0,
    run: runDigest(options.runId ?? NO_RUN_ID),
    secret,
    clock,
    rendezvous: { ...rendezvous, isHosted: false },
    schemeTo: (host) => schemeTo(host, options),
    listen,
    onListen: undefined,
    proofMs,
    joinTimeoutMs: options.joinTimeoutMs ?? JOIN_TIMEOUT_MS,
    route: options.route ?? ((_, to) => to),
  };
  const sender = startHeartbeats(joinerOptions.heartbeatMs);
  const linker = new EpochSockets({
    groupOptions: { ...options, clock },
    options: joinerOptions,
    sockets,
    sender,
  });
  const coordinator = new CoordinatorSocket(joinerOptions, sockets, sender);
  try {
    const { socket, localHost } = await coordinator.open();
    await linker.listen(listen.host ?? localHost ?? LOOPBACK).catch((error: Error) => {
      socket.terminate();
      throw new JoinError({ rank: 0, worldSize: max ?? USUAL_MAX }, error.message);
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
