// Joins a job of threads that share memory, by the handle that the thread was given.

import { IN_PLACE_SCRATCH_BYTES, RankSum } from '@shardweave/dtypes';
import { systemClock } from '../../clock.js';
import { Endpoint, type ProcessServices } from '../../endpoint/endpoint.js';
import { Turns } from '../../endpoint/turns.js';
import { JoinError } from '../../errors.js';
import {
  checkGroupOptions,
  createWorldGroup,
  type GroupOptions,
} from '../../group/group-options.js';
import type { ProcessGroup } from '../../group/process-group.js';
import { within } from '../../time-limit.js';
import { SharedHeap } from './shared-heap.js';
import { checkSharedMemory, type ShmRankHandle } from './shm-job.js';
import { type JoinFailure, ShmTransport } from './shm-transport.js';

/** The options of a rank that joins a job of threads by `connectShm`. */
export interface ConnectShmOptions extends GroupOptions {
  /** The milliseconds in which all ranks have to come. Default: 30 s. */
  readonly joinTimeoutMs?: number;
  /**
   * The milliseconds after each message in which a rank looks for the next one in every turn of its
   * event loop, before it sleeps. That saves the 10 us of being woken. Default: 0.05 in Node with a
   * core for every rank, else 0.
   */
  readonly watchMs?: number;
}

const JOIN_TIMEOUT_MS = 30_000;

/** A few times as long as an answer takes that is already on its way. */
const WATCH_MS = 0.05;

/** Resolves when every rank has its handle. Rejects with JoinError. */
export async function connectShm(
  handle: ShmRankHandle,
  options: ConnectShmOptions = {},
): Promise<ProcessGroup> {
  return (await connectShmEndpoint(handle, options)).group;
}

/** Connects in the same way, and returns the endpoint too, for tests that kill a rank. */
export async function connectShmEndpoint(handle: ShmRankHandle, options: ConnectShmOptions = {}) {
  checkSharedMemory(handle);
  const { rank, worldSize } = handle;
  checkGroupOptions(options, { rank, worldSize, call: 'connectShm' });
  const make = (services: ProcessServices) => new Endpoint(rank, worldSize, options, services);
  const { endpoint, transport } = openShm(handle, options, make);
  const failure = await joinInTime(transport, options.joinTimeoutMs ?? JOIN_TIMEOUT_MS);
  if (failure !== undefined) {
    transport.giveUp(failure);
    throw new JoinError(handle, `${failure.reason}.`);
  }
  return { endpoint, group: createWorldGroup(endpoint, options) };
}

/** Attaches the transport of a handle, which has yet to join, to the endpoint that `make` makes. */
export function openShm<Made extends Endpoint>(
  handle: ShmRankHandle,
  options: Pick<ConnectShmOptions, 'clock' | 'watchMs'>,
  make: (services: ProcessServices) => Made,
): { readonly endpoint: Made; readonly transport: ShmTransport } {
  const turns = new Turns(options.clock ?? systemClock);
  const heap = handle.heap && new SharedHeap(handle.heap);
  const endpoint = make({ reducer: () => createRankSum(heap), turns });
  const watchMs = options.watchMs ?? defaultWatchMs(handle.worldSize);
  const transport = new ShmTransport({ handle, heap, listener: endpoint, turns, watchMs });
  endpoint.attach(transport);
  return { endpoint, transport };
}

/** Resolves when all ranks are here, or with what keeps them from joining. */
function joinInTime(transport: ShmTransport, limitMs: number): Promise<JoinFailure | undefined> {
  return within(limitMs, transport.join(), () => {
    const missing = transport.awaited;
    const reason = `no sign of ranks ${missing.join(', ')} within ${limitMs} ms`;
    return { origin: missing[0]!, reason };
  });
}

/** Makes a reducer that sums in the heap, where everything to be summed lies there. */
async function createRankSum(heap: SharedHeap | undefined): Promise<RankSum> {
  const scratch = heap?.allocate(IN_PLACE_SCRATCH_BYTES)?.byteOffset;
  if (heap === undefined || scratch === undefined) {
    return await RankSum.create();
  }
  const holds = (buffer: ArrayBufferLike) => heap.holds(buffer);
  return await RankSum.create({ memory: heap.memory, holds, scratch });
}

function defaultWatchMs(worldSize: number): number {
  const numCores = globalThis.navigator?.hardwareConcurrency ?? numCoresOfNode();
  return typeof setImmediate === 'function' && worldSize <= numCores ? WATCH_MS : 0;
}

/** The number of cores in Node, of which version 20 has no navigator. */
function numCoresOfNode(): number {
  return globalThis.process?.getBuiltinModule?.('node:os').availableParallelism() ?? 1;
}
