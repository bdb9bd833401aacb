// Joins a Node process to an elastic job over WebSockets, at any time.

import { systemClock } from '../../../clock.js';
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

/** Stands for the rank of a process that speaks to a coordinator, where nobody has a rank. */
export const NO_RANK = 0xffffffff;

/**
 * Resolves when the coordinator has welcomed this process, which is a member of the job's epochs
 * from its first `reform` on. Rejects with JoinError where there is no coordinator, or another job,
 * and with MembershipError where the job has ended.
 */
export async function joinElastic(options: JoinElasticOptions): Promise<Member> {
  const { max, secret, rendezvous, listen = {} } = options;
  const job = { ...options, rank: 0, worldSize: max ?? 1, port: rendezvous.port };
  checkJobOptions(job, { hosts: false });
  checkGroupOptions(options, { rank: 0, worldSize: job.worldSize, call: 'joinElastic' });
  const refusals = new RefusalLog(options.onRefused);
  const worldSize = max ?? USUAL_MAX;
  const security = securityOf({ ...options, worldSize, onRefused: refusals.add });
  const sockets = new NodeSockets(security);
  const joinerOptions: JoinerOptions = {
    ...silencesOf(job),
    rank: NO_RANK,
    worldSize: max ?? ANY_MAX,
    attempt: 0,
    run: runDigest(options.runId ?? NO_RUN_ID),
    secret,
    clock: systemClock,
    rendezvous: { ...rendezvous, isHosted: false },
    schemeTo: (host) => schemeTo(host, options),
    listen,
    onListen: undefined,
    proofMs: security.limits?.proofMs ?? PROOF_MS,
    joinTimeoutMs: options.joinTimeoutMs ?? JOIN_TIMEOUT_MS,
    route: options.route ?? ((_, to) => to),
  };
  const { heartbeatMs } = joinerOptions;
  const sender =
    options.heartbeat === 'link'
      ? undefined
      : new NodeHeartbeatSender({ sockets, heartbeatMs, workerUrl: options.heartbeatWorker });
  const linker = new EpochSockets({
    groupOptions: options,
    options: joinerOptions,
    sockets,
    sender,
  });
  const coordinator = new CoordinatorSocket(joinerOptions, sockets);
  try {
    const { socket, localHost } = await coordinator.open();
    await linker.listen(listen.host ?? localHost ?? LOOPBACK).catch((error: Error) => {
      socket.terminate();
      throw new JoinError({ rank: 0, worldSize }, error.message);
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
