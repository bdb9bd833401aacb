// A rank in a process or a thread of its own.

import type { ProcessGroup } from '@shardweave/collectives';
import { connectShm, type ShmRankHandle } from '@shardweave/collectives/shm';
import { connectWs } from '@shardweave/collectives/ws';
import type { ElasticPlace, ElasticThreadPlace, RankCall, RankPlace } from '../launch/messages.js';
import { DeviceHost } from './device-host.js';
import { runRank } from './run-rank.js';

/** Runs the rank of a process, which is linked to the others over WebSockets. */
export async function runSocketRank(
  place: RankPlace | ElasticPlace,
  call: RankCall,
): Promise<void> {
  if ('max' in place) {
    const { runElasticProcess } = await import('./elastic/run-member.js');
    await runElasticProcess(place, call);
    return;
  }
  const { rank, worldSize, host: address, port, secret } = place;
  await runLinked(await connectWs({ rank, worldSize, address, port, secret }), call);
}

/** Runs the rank of a thread, which is linked to the others by shared memory. */
export async function runThreadRank(
  place: ShmRankHandle | ElasticThreadPlace,
  call: RankCall,
): Promise<void> {
  if ('member' in place) {
    const { runElasticProcess } = await import('./elastic/run-member.js');
    await runElasticProcess(place, call);
    return;
  }
  await runLinked(await connectShm(place), call);
}

async function runLinked(world: ProcessGroup, call: RankCall): Promise<void> {
  const { config, emit, signal, wrapUp } = call;
  await using host = new DeviceHost();
  await runRank({ config, rank: world.rank, world, host, emit, signal, wrapUp });
}
