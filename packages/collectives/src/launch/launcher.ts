// What a launcher says about a process that it started, and what all readers of launchers share.

import { fnv1a } from '@shardweave/dtypes';
import { LOOPBACK } from '../sockets/is-loopback.js';
import type { Environment } from './environment.js';

export type LauncherName =
  | 'torchrun'
  | 'env'
  | 'openmpi'
  | 'pmi'
  | 'pmix'
  | 'kubeflow'
  | 'slurm'
  | 'jobset'
  | 'indexed-job';

/** A process's place in a job. What is undefined the launcher doesn't say. */
export interface Launcher {
  /** 'env': RANK and WORLD_SIZE, set by hand or by a launcher that has no other sign. */
  readonly launcher: LauncherName;
  readonly rank: number;
  readonly worldSize: number;
  /** The process's number among those of this host. */
  readonly localRank: number | undefined;
  readonly localWorldSize: number | undefined;
  /** The number of this host among the job's. */
  readonly nodeRank: number | undefined;
  /** Name or IP of rank 0's host. */
  readonly address: string | undefined;
  /** Where rank 0 listens. */
  readonly port: number;
  /** How often the job was started before: 0, and one more for each restart of all ranks. */
  readonly attempt: number;
  /** Equal on all ranks, and another one for each job as far as the launcher has an id. */
  readonly runId: string;
  /** The environment variables that this was read from. */
  readonly variables: readonly string[];
}

/** What a reader finds; readLauncher adds what all launchers have in common. */
export type LauncherFindings = Omit<Launcher, 'variables' | 'attempt' | 'runId'> &
  Partial<Pick<Launcher, 'attempt' | 'runId'>>;

/** PyTorch's port, for want of another. */
export const DEFAULT_PORT = 29_500;

/** MASTER_ADDR; else loopback where all ranks are on one host; else unknown. */
export function masterAddress(env: Environment, isOneHost: boolean): string | undefined {
  return env.text('MASTER_ADDR') ?? (isOneHost ? LOOPBACK : undefined);
}

/**
 * A port that all ranks derive from their job's id and another job most likely does not share:
 * even, for the store takes the next one, and below those that Linux gives to clients (32768).
 */
export function portOfJob(id: string): number {
  return 16_384 + 2 * (fnv1a(id) % 8192);
}
