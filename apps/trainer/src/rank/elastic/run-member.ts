// A member of an elastic job in a process or a thread of its own: one that the command has started,
// or one that somebody has joined to it, from this machine or another.

import {
  type Epoch,
  joinElastic,
  joinElasticShm,
  type Member,
} from '@shardweave/collectives/elastic';
import { Device } from '@shardweave/tensor-core';
import type { ElasticPlace, ElasticThreadPlace, RankCall } from '../../launch/messages.js';
import { isWatched } from '../../run-config.js';
import { CommWatch } from '../comm-watch.js';
import { DeviceHost } from '../device-host.js';
import type { Reached } from '../train-loop.js';
import { runElasticRank } from './elastic-rank.js';
import { SoloLead } from './solo-lead.js';

/** Runs a rank that the command has started, and which tells it of the job. */
export async function runElasticProcess(
  place: ElasticPlace | ElasticThreadPlace,
  call: RankCall,
): Promise<void> {
  const { localRank, isFirst } = place;
  const { emit } = call;
  await using devices = new DeviceHost();
  const member = await memberAt(place);
  emit({ type: 'member', id: member.id });
  await runMember(member, { ...call, devices, localRank, lead: { isFirst } });
}

function memberAt(place: ElasticPlace | ElasticThreadPlace): Promise<Member> {
  if ('member' in place) {
    return joinElasticShm(place.member);
  }
  const { host, port, secret, max } = place;
  return joinElastic({ rendezvous: { host, port }, max, secret });
}

export interface MemberCall extends RankCall {
  readonly devices: DeviceHost;
  readonly localRank: number;
  /** What it does where it is the first of an epoch; undefined where the command can't hear it. */
  readonly lead?: { readonly isFirst: boolean } | undefined;
  readonly onEpoch?: (epoch: Epoch) => void;
  readonly onUpdated?: (reached: Reached) => void;
}

/** Trains as a member until the job is done, or the rank was asked to leave. */
export async function runMember(member: Member, call: MemberCall): Promise<Reached | undefined> {
  const { config, devices: host, localRank, emit, signal, wrapUp, lead } = call;
  const { threads, products, seed } = config;
  const choice = config.device[localRank] ?? config.device[0]!;
  // No products are measured here: each GPU would choose tiles, and so bits, of its own.
  const backend = await host.open(choice, { threads, products, localRank });
  await backend.preparePlanned?.();
  const device = new Device(backend, { seed });
  const leave = () => void member.leave();
  signal.addEventListener('abort', leave, { once: true });
  try {
    return await runElasticRank({
      ...{ config, member, device, emit, signal, wrapUp },
      isNewcomer: lead?.isFirst !== true,
      onEpoch: call.onEpoch,
      onUpdated: call.onUpdated,
      watched:
        isWatched(config) && lead ? { comm: new CommWatch(backend), rank: localRank } : undefined,
      lead:
        lead &&
        new SoloLead({
          config,
          backend,
          device,
          host,
          emit,
          signal,
          localRank,
          isFirst: lead.isFirst,
          keeping: call.keeping,
        }),
    });
  } finally {
    signal.removeEventListener('abort', leave);
    device.dispose();
  }
}
