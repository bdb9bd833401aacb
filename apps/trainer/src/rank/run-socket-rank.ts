// A rank in a process of its own, linked to the others over WebSockets.

import { connectWs } from '@shardweave/collectives/ws';
import type { RankPlace, RankSignals } from '../launch/messages.js';
import type { PreparedRun } from '../run-config.js';
import { DeviceHost } from './device-host.js';
import type { EmitRankEvent } from './events.js';
import { runRank } from './run-rank.js';

export async function runSocketRank(
  config: PreparedRun,
  place: RankPlace,
  emit: EmitRankEvent,
  signals: RankSignals,
): Promise<void> {
  const { rank, worldSize, host: address, port, secret } = place;
  const world = await connectWs({ rank, worldSize, address, port, secret });
  await using host = new DeviceHost();
  await runRank({ config, rank, world, host, emit, ...signals });
}
