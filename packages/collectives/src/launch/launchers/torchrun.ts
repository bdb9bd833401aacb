// Reads the variables of torchrun (torch.distributed.run), and RANK and WORLD_SIZE without it, as
// older launchers and many scripts set them.

import type { Environment } from './environment.js';
import { DEFAULT_PORT, type LauncherFindings, masterAddress } from './launcher.js';

/**
 * A worker of torchrun. Its agent's own flags, PET_*, are in the environment, too, and don't
 * matter.
 */
export function readTorchrun(env: Environment): LauncherFindings | undefined {
  if (env.text('TORCHELASTIC_RUN_ID') === undefined || !env.has('RANK')) {
    return undefined;
  }
  const place = readPlace(env);
  const isOneHost = place.localWorldSize === place.worldSize;
  const port = env.port('MASTER_PORT') ?? DEFAULT_PORT;
  // Note [agent's store]
  // With fixed addresses, and always in PyTorch 2.4 and later, the agent's own TCPStore listens on
  // MASTER_PORT, so rank 0 takes the port next to it.
  const isTaken = env.text('TORCHELASTIC_USE_AGENT_STORE')?.toLowerCase() === 'true';
  // Each agent counts its own restarts, and the counts differ between hosts after one of them has
  // failed (PyTorch's local_elastic_agent.py), so they mean something on a single host only.
  const restarts = env.count(['TORCHELASTIC_RESTART_COUNT']);
  return {
    launcher: 'torchrun',
    ...place,
    address: masterAddress(env, isOneHost),
    port: isTaken ? besidePort(port) : port,
    attempt: isOneHost ? (restarts ?? 0) : 0,
    runId: env.text('TORCHELASTIC_RUN_ID')!,
  };
}

export function readPlainEnvironment(env: Environment): LauncherFindings | undefined {
  if (!env.has('RANK')) {
    return undefined;
  }
  const place = readPlace(env);
  const isOneHost = (place.localWorldSize ?? place.worldSize) === place.worldSize;
  return {
    launcher: 'env',
    ...place,
    address: masterAddress(env, isOneHost),
    port: env.port('MASTER_PORT') ?? DEFAULT_PORT,
  };
}

function readPlace(env: Environment) {
  const rank = env.count(['RANK'])!;
  const remedy = 'Set it to the number of processes of the job.';
  const worldSize = env.requiredCount(['WORLD_SIZE'], 1, remedy);
  const localWorldSize = env.count(['LOCAL_WORLD_SIZE'], 1);
  const localRank = env.count(['LOCAL_RANK']);
  const nodeRank = env.count(['GROUP_RANK', 'NODE_RANK']);
  const derived = localWorldSize === undefined ? undefined : Math.floor(rank / localWorldSize);
  return { rank, worldSize, localRank, localWorldSize, nodeRank: nodeRank ?? derived };
}

function besidePort(port: number): number {
  return port < 65_535 ? port + 1 : port - 1;
}
