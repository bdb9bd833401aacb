// Joins a key-value store as a client: dials until something listens, proves that it knows the
// secret and tells which run and attempt it belongs to.

import { StoreError } from '../errors.js';
import { runDigest } from '../sockets/handshake.js';
import { LOOPBACK } from '../sockets/is-loopback.js';
import { type ListenSecurityOptions, schemeTo } from '../sockets/listen-security.js';
import { NodeSockets } from '../sockets/node-sockets.js';
import { PROOF_MS, prove } from '../sockets/prove.js';
import { OpenError } from '../sockets/socket-platform.js';
import type { WireSocket } from '../sockets/wire-socket.js';
import { Store } from './store.js';
import { NO_RANK } from './store-session.js';

/**
 * The options of a client that joins a key-value store by `connectStore`: where the server is, the
 * secret, the run, and time limits.
 */
export interface ConnectStoreOptions extends Pick<ListenSecurityOptions, 'tls' | 'encryption'> {
  /** The server's host. Default: 127.0.0.1. */
  readonly address?: string;
  readonly port: number;
  /** The secret that the server knows. */
  readonly secret: string;
  /** This process's rank, for `barrier`. Default: none, for a client that is not a rank. */
  readonly rank?: number;
  readonly worldSize?: number;
  /**
   * The name of the run. Keys of other runs, and of other attempts of this one, are not visible.
   * Default: 'none'.
   */
  readonly runId?: string;
  /** The number of earlier starts of the run. Default: 0. */
  readonly attempt?: number;
  /** The milliseconds until the server must be there. Default: 30 s. */
  readonly joinTimeoutMs?: number;
  /** The milliseconds for which `get`, `wait` and `barrier` wait. Default: 300 s, as in PyTorch. */
  readonly timeoutMs?: number;
  /**
   * The milliseconds of silence after which the server counts as lost while a call waits. It is
   * silent while its process computes, so this must be longer than that takes. Default: 60 s.
   */
  readonly silenceMs?: number;
}

export const STORE_JOIN_TIMEOUT_MS = 30_000;
const TIMEOUT_MS = 300_000;
const SILENCE_MS = 60_000;
const RETRY_MS = 50;

/** Resolves when the store can be used. Rejects with StoreError STORE_JOIN or STORE_STALE. */
export async function connectStore(
  options: ConnectStoreOptions,
  onClosed?: () => Promise<void>,
): Promise<Store> {
  const { address = LOOPBACK, port, secret, rank, worldSize, runId = 'none' } = options;
  if ((rank === undefined) !== (worldSize === undefined)) {
    throw new StoreError('STORE_JOIN', 'store: expected rank and worldSize, or none of the two');
  }
  const host = address.includes(':') ? `[${address}]` : address;
  const deadline = performance.now() + (options.joinTimeoutMs ?? STORE_JOIN_TIMEOUT_MS);
  const socket = await dial(`${schemeTo(address, options)}://${host}:${port}`, deadline, options);
  const { attempt = 0 } = options;
  const hello = { role: 'store', target: 0, attempt, run: runDigest(runId) } as const;
  try {
    await prove(socket, {
      secret,
      hello: { ...hello, rank: rank ?? NO_RANK, worldSize: worldSize ?? 0 },
      proofMs: Math.min(PROOF_MS, Math.max(1, deadline - performance.now())),
    });
  } catch (error) {
    socket.terminate();
    const reason = (error as Error).message;
    throw new StoreError('STORE_JOIN', `store: refused by ${host}:${port}: ${reason}`);
  }
  const { timeoutMs = TIMEOUT_MS, silenceMs = SILENCE_MS } = options;
  return Store.open(socket, { runId, timeoutMs, silenceMs, ...(onClosed && { onClosed }) });
}

async function dial(
  url: string,
  deadline: number,
  options: ConnectStoreOptions,
): Promise<WireSocket> {
  const { secret, tls, encryption, joinTimeoutMs = STORE_JOIN_TIMEOUT_MS } = options;
  const sockets = new NodeSockets({ secret, tls, encryption });
  for (;;) {
    try {
      return (await sockets.open(url, deadline - performance.now())).socket;
    } catch (error) {
      const isEarly = error instanceof OpenError && error.isEarly;
      if (!isEarly || performance.now() > deadline) {
        const { message } = error as Error;
        const hint = message.includes('timed out') ? ': something else may listen there' : '';
        const text = `no store at ${url} (${message}${hint})`;
        throw new StoreError('STORE_JOIN', `store: ${text}, within ${joinTimeoutMs} ms`);
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }
}
