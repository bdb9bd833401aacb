// What a launcher tells about a process that it started, and what all readers of launchers share.

import { fnv1a } from '@shardweave/dtypes';
import { LOOPBACK } from '../../sockets/is-loopback.js';
import type { Environment } from './environment.js';

/**
 * The launchers whose variables `readLauncher` knows. 'env' stands for RANK and WORLD_SIZE without
 * a sign of any other; 'jobset' and 'indexed-job' are Kubernetes' own, and 'kubeflow' is its
 * training operator.
 */
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

/** A process's place in a job. A field is undefined where the launcher doesn't tell it. */
export interface Launcher {
  /**
   * The launcher. 'env' stands for RANK and WORLD_SIZE alone, set by hand or by a launcher that
   * shows no other sign.
   */
  readonly launcher: LauncherName;
  readonly rank: number;
  readonly worldSize: number;
  /** The process's number among those of its host. */
  readonly localRank: number | undefined;
  readonly localWorldSize: number | undefined;
  /** The number of this host among the job's hosts. */
  readonly nodeRank: number | undefined;
  /** The name or IP of rank 0's host. */
  readonly address: string | undefined;
  /** The port on which rank 0 listens. */
  readonly port: number;
  /**
   * The number of earlier starts of the job: 0 at first, and one more after each restart of all
   * ranks.
   */
  readonly attempt: number;
  /** Equal on all ranks, and different for each job as far as the launcher has an id. */
  readonly runId: string;
  /** The environment variables from which this was read. */
  readonly variables: readonly string[];
}

/** What a reader finds; readLauncher adds what all launchers have in common. */
export type LauncherFindings = Omit<Launcher, 'variables' | 'attempt' | 'runId'> &
  Partial<Pick<Launcher, 'attempt' | 'runId'>>;

/** PyTorch's port, used where no other is given. */
export const DEFAULT_PORT = 29_500;

/** The value of MASTER_ADDR; else loopback where all ranks are on one host; else undefined. */
export function masterAddress(env: Environment, isOneHost: boolean): string | undefined {
  return env.text('MASTER_ADDR') ?? (isOneHost ? LOOPBACK : undefined);
}

/**
 * A port that all ranks derive from their job's id, and that another job most likely does not
 * share. It lies below those that Linux gives to clients (32768).
 */
export function portOfJob(id: string): number {
  return 16_384 + (fnv1a(id) % 16_384);
}
