// Ranks in one process. Each has its own Device over one shared backend, and its own end of an
// in-process group.

import { createMemoryGroup, type ProcessGroup } from '@shardweave/collectives';
import { type Backend, Device, Trace } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';

export interface Rank {
  readonly rank: number;
  readonly worldSize: number;
  readonly group: ProcessGroup;
  readonly device: Device;
}

// One backend serves all runs of a process, since training a small model takes less time than
// making a backend.
let shared: Promise<Backend> | undefined;

export function sharedBackend(): Promise<Backend> {
  shared ??= createCpuBackend({ threads: 1 });
  return shared;
}

interface RanksOptions {
  readonly backend?: Backend;
  readonly wrapGroup?: (group: ProcessGroup) => ProcessGroup;
}

/** Runs `body` on every rank at once, and returns the results in rank order. */
export function onRanks(
  worldSize: number,
  body: (rank: Rank) => Promise<void>,
  options?: RanksOptions,
): Promise<void>;
export function onRanks<T>(
  worldSize: number,
  body: (rank: Rank) => Promise<T>,
  options?: RanksOptions,
): Promise<T[]>;
export async function onRanks(
  worldSize: number,
  body: (rank: Rank) => Promise<unknown>,
  options: RanksOptions = {},
): Promise<unknown> {
  const backend = options.backend ?? (await sharedBackend());
  const groups = createMemoryGroup(worldSize);
  const devices = groups.map(
    (_, rank) => new Device(backend, { seed: 7, trace: new Trace({ rank }) }),
  );
  try {
    return await Promise.all(
      devices.map(async (device, rank) => {
        const group = groups[rank]!;
        return body({ rank, worldSize, group: options.wrapGroup?.(group) ?? group, device });
      }),
    );
  } finally {
    for (const group of groups) {
      await group.close();
    }
    if (options.backend === undefined) {
      for (const device of devices) {
        device.dispose();
      }
    }
  }
}
