// Opens the store of the job for which a launcher started this process. Rank 0 serves it.

import { LOOPBACK } from '../sockets/is-loopback.js';
import { type ConnectStoreOptions, connectStore } from '../store/connect-store.js';
import type { Store } from '../store/store.js';
import { StoreServer, type StoreServerOptions } from '../store/store-server.js';
import type { EnvVariables } from './environment.js';
import { LAUNCH_TIMEOUT_MS } from './init-process-group.js';
import { meetingAddress, type PlaceOptions, readPlace } from './place.js';
import { readSecret } from './secret.js';

/** Options that are not given are read from the environment, as initProcessGroup does. */
export interface InitStoreOptions
  extends PlaceOptions,
    Pick<ConnectStoreOptions, 'joinTimeoutMs' | 'timeoutMs' | 'silenceMs'>,
    Pick<StoreServerOptions, 'tls' | 'encryption' | 'onRefused' | 'limits'> {
  readonly secret?: string;
}

/** The time for which rank 0 goes on serving ranks that have not closed their store. */
const LEAVE_MS = 5000;

/**
 * Resolves when this rank can use the store, which is on the port after the group's. Close it on
 * all ranks: rank 0's close goes on serving the others until they have left, for at most five
 * seconds.
 * @throws {LaunchError} as initProcessGroup does
 * @throws {StoreError} STORE_JOIN
 */
export async function initStore(options: InitStoreOptions = {}): Promise<Store> {
  const { joinTimeoutMs = LAUNCH_TIMEOUT_MS, timeoutMs, silenceMs } = options;
  const env: EnvVariables = options.env ?? process.env;
  const place = readPlace(options);
  const { rank, worldSize, attempt, runId } = place;
  const secret = await readSecret({ ...options, worldSize, env });
  const address = await meetingAddress(place, { ...options, joinTimeoutMs });
  const port = place.port + 1;
  const { tls, encryption, onRefused, limits = {} } = options;
  const shared = { ...(tls && { tls }), ...(encryption && { encryption }) };
  const security = { ...shared, ...(onRefused && { onRefused }) };
  const server =
    rank === 0
      ? await StoreServer.listen({ ...security, limits, secret, address, port })
      : undefined;
  try {
    return await connectStore(
      {
        rank,
        worldSize,
        attempt,
        runId,
        secret,
        ...shared,
        address: rank === 0 && isUnspecified(address) ? LOOPBACK : address,
        port,
        joinTimeoutMs,
        ...(timeoutMs !== undefined && { timeoutMs }),
        ...(silenceMs !== undefined && { silenceMs }),
      },
      server && (() => server.close({ waitMs: LEAVE_MS })),
    );
  } catch (error) {
    await server?.close();
    throw error;
  }
}

/**
 * Whether the address means every interface: rank 0 may listen there, but nobody can connect to it.
 */
function isUnspecified(address: string): boolean {
  return address === '0.0.0.0' || address === '::';
}
