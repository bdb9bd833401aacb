// Runs a job over the transport that it asks for, and writes the trace of all its ranks.

import { writeFileSync } from 'node:fs';
import { createMemoryGroup, type ProcessGroup } from '@shardweave/collectives';
import { readLauncher } from '@shardweave/collectives/launch';
import { chromeTrace, Trace } from '@shardweave/tensor-core';
import { headOf } from '../data/known-labels.js';
import { type PrepareOptions, prepareTokens } from '../data/prepare-tokens.js';
import { TokenCache } from '../data/token-cache.js';
import { UsageError } from '../errors.js';
import { whyNotWritten } from '../files/disk-room.js';
import { writeText } from '../files/write-file.js';
import { requireRoom } from '../plan/require-room.js';
import { DeviceHost } from '../rank/device-host.js';
import type { RankEvent } from '../rank/events.js';
import { runRank } from '../rank/run-rank.js';
import { isElastic, type PreparedRun, type RunConfig, type TokenFiles } from '../run-config.js';
import { describeSystemError } from '../system-error.js';
import { resolveDevices } from './adapter-probe.js';
import { resolveProducts } from './resolve-products.js';
import { runElastic } from './run-elastic.js';
import { runInMemory } from './run-in-memory.js';
import { runMpi } from './run-mpi.js';
import { runProcesses } from './run-processes.js';
import { runThreads } from './run-threads.js';

export interface JobOptions {
  /** The script that rank processes, threads and probes run. */
  readonly entry: string;
  /** Called with the progress of tokenizing, where the tokens are not in the cache. */
  readonly onTokenized?: PrepareOptions['onTokenized'];
  /** Called with what is done before ranks are there. */
  readonly onDoing?: (what: string) => void;
  /** Called with what a person should know that is in no record. */
  readonly onNote?: (text: string) => void;
  readonly onEvent: (event: RankEvent) => void;
  /** Ends the job after the present step, with a save; for runs with --save-every. */
  readonly wrapUp?: AbortSignal | undefined;
  /** Ends the job; its reason is what `runJob` rejects with. */
  readonly signal: AbortSignal;
}

/** Resolves when every rank has done its work; see runProcesses for how it rejects. */
export async function runJob(asked: RunConfig, options: JobOptions): Promise<void> {
  if (asked.trace !== undefined) {
    openTrace(asked.trace);
  }
  const { onDoing = () => {} } = options;
  onDoing('looking for devices');
  const device = await resolveDevices(asked.device, options.entry);
  const products = await resolveProducts({ ...asked, device });
  const decided = { ...asked, device, products };
  onDoing('checking what fits');
  await requireRoom(decided);
  const traces: Extract<RankEvent, { type: 'trace' }>[] = [];
  const onEvent = (event: RankEvent) => {
    if (event.type === 'trace') {
      traces.push(event);
    } else {
      options.onEvent(event);
    }
  };
  if (asked.transport === 'mpi') {
    await runHereByMpi(decided, { ...options, onEvent });
  } else {
    await using cache = await TokenCache.open(asked.cache);
    const tokens = asked.again?.tokens ?? (await prepareTokens(asked, { ...options, cache }));
    const config = { ...decided, tokens, head: await headOf(decided, tokens) };
    onDoing(asked.ranks === 1 ? 'making the model' : `starting ${asked.ranks} ranks`);
    const runs = { memory: runHere, shm: runThreads, ws: runProcesses };
    const run = isElastic(config) ? runElastic : runs[asked.transport];
    await run(config, { ...options, onEvent });
  }
  if (asked.trace !== undefined && traces.length > 0) {
    writeTrace(asked.trace, mergeTraces(traces), options);
  }
}

/**
 * Makes an empty file at once, so that hours of work can't end with a path that can't be written.
 */
function openTrace(path: string): void {
  try {
    writeFileSync(path, '');
  } catch (cause) {
    throw new UsageError(
      `--trace: ${path} can't be written (${describeSystemError(cause)}). Give a file in a directory that exists.`,
      { cause },
    );
  }
}

/** Warns where the trace can't be written, because the run is done without it, too. */
function writeTrace(path: string, text: string, { onEvent }: Pick<JobOptions, 'onEvent'>): void {
  try {
    writeText(path, text);
  } catch (error) {
    onEvent({ type: 'warning', text: `--trace: ${whyNotWritten(error, path)}` });
  }
}

async function runHere(config: PreparedRun, options: JobOptions): Promise<void> {
  await using host = new DeviceHost();
  const worlds = createMemoryGroup(config.ranks);
  const { wrapUp = new AbortController().signal } = options;
  await runInMemory({
    ranks: config.ranks,
    onEvent: options.onEvent,
    signal: options.signal,
    work: (rank, emit, signal) =>
      runRank({ config, rank, world: worlds[rank]!, host, emit, signal, wrapUp }),
  });
}

async function runHereByMpi(config: RunConfig, options: JobOptions): Promise<void> {
  const { onEvent, signal, wrapUp = new AbortController().signal } = options;
  await using host = new DeviceHost();
  await runMpi(config, {
    onEvent,
    signal,
    work: async (world, emit, stop) => {
      const { rank } = world;
      const localRank = readLauncher(process.env)?.localRank ?? rank;
      await using cache = await TokenCache.open(config.cache);
      const tokens = await prepareInTurn(config, world, { ...options, cache, localRank });
      const place = { rank, localRank, world, host };
      const head = await headOf(config, tokens);
      await runRank({ config: { ...config, tokens, head }, ...place, emit, signal: stop, wrapUp });
    },
  });
}

/** Lets the first rank of a host make the tokens, which the others of the host then find. */
async function prepareInTurn(
  config: RunConfig,
  world: ProcessGroup,
  { localRank, ...options }: PrepareOptions & { readonly localRank: number },
): Promise<TokenFiles> {
  try {
    const own = localRank === 0 ? await prepareTokens(config, options) : undefined;
    await world.barrier();
    return own ?? (await prepareTokens(config, options));
  } catch (error) {
    world.abort((error as Error).message);
    throw error;
  }
}

/** Merges the traces into one Chrome trace that begins at 0. */
function mergeTraces(traces: readonly Extract<RankEvent, { type: 'trace' }>[]): string {
  const starts = traces.flatMap(({ events }) => events.map(({ startMs }) => startMs));
  const first = starts.reduce((least, start) => Math.min(least, start), Number.POSITIVE_INFINITY);
  return chromeTrace(
    [...traces]
      .sort((a, b) => a.rank - b.rank)
      .map(({ rank, events }) => {
        const trace = new Trace({ rank });
        for (const event of events) {
          trace.add({ ...event, startMs: event.startMs - first, endMs: event.endMs - first });
        }
        return trace;
      }),
  );
}
