// A rank in a thread of its own, linked to the others by shared memory.

import { connectShm, type ShmRankHandle } from '@shardweave/collectives/shm';
import type { RankSignals } from '../launch/messages.js';
import type { PreparedRun } from '../run-config.js';
import { DeviceHost } from './device-host.js';
import type { EmitRankEvent } from './events.js';
import { runRank } from './run-rank.js';

export async function runThreadRank(
  config: PreparedRun,
  handle: ShmRankHandle,
  emit: EmitRankEvent,
  signals: RankSignals,
): Promise<void> {
  const world = await connectShm(handle);
  await using host = new DeviceHost();
  await runRank({ config, rank: handle.rank, world, host, emit, ...signals });
}
