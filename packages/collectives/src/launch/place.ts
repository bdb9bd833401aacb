// This process's place in its job: explicit options come first, then what the launcher told; on the
// first host also the address to listen on.

import { promises as dns, type LookupAddress } from 'node:dns';
import { isIP } from 'node:net';
import { LaunchError } from '../errors.js';
import { addressOfName, isLoopback, LOOPBACK } from '../sockets/is-loopback.js';
import { Environment, type EnvVariables } from './launchers/environment.js';
import { DEFAULT_PORT, type Launcher } from './launchers/launcher.js';
import { readLauncher } from './read-launcher.js';

/**
 * The place of this process in its job. An option that is set wins over what the launcher tells.
 */
export interface PlaceOptions {
  /** This process's rank. Each of these options defaults to what the launcher tells. */
  readonly rank?: number;
  readonly worldSize?: number;
  /** The name or IP of rank 0's host. */
  readonly address?: string;
  /** The port on which rank 0 listens. */
  readonly port?: number;
  /** The number of earlier starts of the job. */
  readonly attempt?: number;
  /** The name of the job; see Launcher. */
  readonly runId?: string;
  /**
   * The address on which rank 0 listens where that is not `address`, as behind the published port
   * of a container. Default: SHARDWEAVE_LISTEN_ADDRESS, else `address`.
   */
  readonly listenAddress?: string;
  /** The environment variables. Default: the process's. */
  readonly env?: EnvVariables;
}

export interface Place {
  readonly rank: number;
  readonly worldSize: number;
  /** Undefined where neither the launcher nor the options tell it. */
  readonly address: string | undefined;
  readonly port: number;
  readonly attempt: number;
  readonly runId: string;
  /** Undefined where rank and world size were given as options. */
  readonly launcher: Launcher | undefined;
}

/** The time between lookups of a name, which may become known late, as a pod's does. */
const LOOKUP_RETRY_MS = 250;

const ADDRESS_REMEDY =
  "Set it, or the option address, on all ranks to a name or IP of rank 0's host that the other hosts reach.";

/**
 * This process's place.
 * @throws {LaunchError} where neither options nor environment tell it, or what they tell is wrong
 */
export function readPlace(options: PlaceOptions): Place {
  const { rank, worldSize, env = process.env } = options;
  if (rank !== undefined && worldSize !== undefined) {
    const variables = new Environment(env);
    return {
      rank,
      worldSize,
      address: options.address ?? variables.text('MASTER_ADDR') ?? LOOPBACK,
      port: options.port ?? variables.port('MASTER_PORT') ?? DEFAULT_PORT,
      attempt: options.attempt ?? variables.count(['SHARDWEAVE_ATTEMPT']) ?? 0,
      runId: options.runId ?? variables.text('SHARDWEAVE_RUN_ID') ?? 'none',
      launcher: undefined,
    };
  }
  const given = worldSize === undefined ? {} : { WORLD_SIZE: String(worldSize) };
  const launcher = readLauncher({ ...env, ...given });
  if (launcher === undefined) {
    throw new LaunchError('RANK', undefined, {
      problem: 'no launcher has started this process (torchrun, mpirun, srun, a Kubernetes Job)',
      remedy: 'Set RANK and WORLD_SIZE (0 and 1 for one process), or the options of these names.',
    });
  }
  return {
    rank: rank ?? launcher.rank,
    worldSize: launcher.worldSize,
    address: options.address ?? launcher.address,
    port: options.port ?? launcher.port,
    attempt: options.attempt ?? launcher.attempt,
    runId: options.runId ?? launcher.runId,
    launcher,
  };
}

/**
 * The address at which the ranks meet, as connectWs takes it: on rank 0 an IP of its own to listen
 * on, elsewhere the address as it was given. Waits until rank 0's own name is known.
 * @throws {LaunchError} where there is no address, or one that other hosts can't reach
 */
export async function rendezvousAddress(
  place: Place,
  options: PlaceOptions & { readonly joinTimeoutMs: number },
): Promise<string> {
  const { rank, worldSize, address = worldSize === 1 ? LOOPBACK : undefined, launcher } = place;
  if (address === undefined) {
    throw new LaunchError('MASTER_ADDR', undefined, {
      problem: `expected rank 0's host, which ${launcher?.launcher} does not say`,
      remedy: ADDRESS_REMEDY,
    });
  }
  const env = new Environment(options.env ?? process.env);
  const listenAddress = options.listenAddress ?? env.text('SHARDWEAVE_LISTEN_ADDRESS');
  if (rank === 0 && listenAddress !== undefined) {
    return listenAddress;
  }
  const localWorldSize = launcher?.localWorldSize ?? worldSize;
  const isSeenByOthers = localWorldSize < worldSize;
  const isFirstHost = rank === 0 || launcher?.nodeRank === 0;
  if (!isFirstHost || (rank !== 0 && !isSeenByOthers)) {
    return address; // connectWs waits until its name is known
  }
  const ip = await lookUp(address, options.joinTimeoutMs);
  // Debian's /etc/hosts has the host's own name as 127.0.1.1. An explicit 'localhost' is meant as
  // such.
  if (isSeenByOthers && isLoopback(ip) && address !== ip && address !== 'localhost') {
    throw new LaunchError('MASTER_ADDR', `${address}, here ${ip}`, {
      problem: 'expected an address that the other hosts of this job can reach',
      remedy: ADDRESS_REMEDY,
    });
  }
  return rank === 0 ? ip : address;
}

async function lookUp(name: string, limitMs: number): Promise<string> {
  const address = addressOfName(name);
  if (isIP(address) !== 0) {
    return address;
  }
  const deadline = performance.now() + limitMs;
  for (;;) {
    try {
      const found: LookupAddress = await dns.lookup(name);
      return found.address;
    } catch (error) {
      if (performance.now() > deadline) {
        const { code = 'unknown' } = error as NodeJS.ErrnoException;
        const problem = `expected a name that is known here (${code} for ${limitMs} ms)`;
        throw new LaunchError('MASTER_ADDR', name, { problem, remedy: ADDRESS_REMEDY });
      }
      await new Promise((resolve) => setTimeout(resolve, LOOKUP_RETRY_MS));
    }
  }
}
