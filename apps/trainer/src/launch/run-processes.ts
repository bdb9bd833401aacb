// Runs a job as a process a rank on this machine: starts them, watches them, and leaves none behind.

import { type ChildProcess, fork } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import type { AddressInfo } from 'node:net';
import { createServer } from 'node:net';
import type { RankEvent } from '../rank/events.js';
import type { RunConfig } from '../run-config.js';
import type { FromRank, RankPlace, ToRank } from './messages.js';
import { type RankEnd, rootCause } from './rank-failure.js';
import { RANK_PROCESS_VARIABLE } from './rank-process.js';

export interface RunProcessesOptions {
  /** The script that a rank process runs; it calls serveRank. */
  readonly entry: string;
  readonly onEvent: (event: RankEvent) => void;
  /** Ends the job; its reason is what `runProcesses` rejects with. */
  readonly signal: AbortSignal;
}

const HOST = '127.0.0.1';
/** Ranks that lose a peer report within moments of its end: wait for all before blaming one. */
const GATHER_FAILURES_MS = 400;
/** Then they get this long to leave by themselves; the whole must stay within ten seconds. */
const STOP_MS = 3000;
/** A rank that has said it is done and doesn't leave. */
const DONE_MS = 10_000;
/** Kept of what a rank prints on stderr, to show when it crashes. */
const STDERR_KEPT_CHARS = 4000;

/**
 * Resolves when every rank has done its work and all processes are gone. Rejects, also with all of
 * them gone, with a RankFailedError (or UsageError) for the rank that began it, or the signal's reason.
 */
export async function runProcesses(config: RunConfig, options: RunProcessesOptions): Promise<void> {
  options.signal.throwIfAborted();
  const place = {
    worldSize: config.ranks,
    host: HOST,
    port: await freePort(),
    secret: randomBytes(32).toString('hex'),
  };
  const progress = { step: 0 };
  const onEvent = (event: RankEvent) => {
    if (event.type === 'step') progress.step = event.metrics.step;
    options.onEvent(event);
  };
  const ranks = Array.from({ length: config.ranks }, (_, rank) =>
    startRank(config, { ...place, rank }, { ...options, onEvent, progress }),
  );
  const stopped = new Promise<never>((_, reject) => {
    options.signal.addEventListener('abort', () => reject(options.signal.reason), { once: true });
  });
  const firstFailure = new Promise<void>((resolve) => {
    for (const rank of ranks) rank.failed.then(resolve);
  });
  const allDone = Promise.all(ranks.map((rank) => rank.done));
  try {
    const outcome = await Promise.race([
      stopped,
      allDone.then(() => 'done' as const),
      firstFailure.then(() => 'failed' as const),
    ]);
    if (outcome === 'failed') {
      await Promise.race([delay(GATHER_FAILURES_MS), stopped]);
      throw rootCause(
        ranks.flatMap((rank) => rank.end() ?? []),
        config.ranks,
      );
    }
    await endAll(ranks, DONE_MS);
  } finally {
    for (const rank of ranks) rank.tell({ type: 'stop' });
    await endAll(ranks, STOP_MS);
  }
}

interface RunningRank {
  readonly child: ChildProcess;
  /** Resolves when the rank has said that its work is done. */
  readonly done: Promise<void>;
  /** Resolves when it failed or left without having been done. */
  readonly failed: Promise<void>;
  readonly exited: Promise<void>;
  tell(message: ToRank): void;
  /** How it failed, if it did. */
  end(): RankEnd | undefined;
}

interface StartOptions extends RunProcessesOptions {
  /** Last step that the job finished. */
  readonly progress: { readonly step: number };
}

function startRank(config: RunConfig, place: RankPlace, options: StartOptions): RunningRank {
  const child = fork(options.entry, [], {
    env: { ...process.env, [RANK_PROCESS_VARIABLE]: String(place.rank) },
    stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
    serialization: 'advanced', // keeps a NaN loss, which JSON has no word for
  });
  let stderr = '';
  let isDone = false;
  let end: RankEnd | undefined;
  const done = deferred();
  const failed = deferred();
  const exited = deferred();
  const note = (how: Omit<RankEnd, 'rank' | 'step' | 'stderr'>) => {
    if (isDone || end !== undefined) return;
    end = { rank: place.rank, step: options.progress.step, stderr, ...how };
    failed.resolve();
  };
  child.stderr?.on('data', (chunk: Buffer) => {
    stderr = (stderr + chunk.toString()).slice(-STDERR_KEPT_CHARS);
  });
  child.on('message', (message: FromRank) => {
    if (message.type === 'event') {
      options.onEvent(message.event);
    } else if (message.type === 'failed') {
      note({ failure: message.failure });
    } else {
      isDone = true;
      done.resolve();
    }
  });
  child.on('error', (error) => {
    note({ failure: { message: error.message, isUsage: false, isPeerLost: false } });
    if (child.pid === undefined) exited.resolve();
  });
  child.on('exit', (exitCode, signal) => {
    note({ exitCode, signal });
    exited.resolve();
  });
  const tell = (message: ToRank) => {
    if (child.connected) child.send(message, () => {});
  };
  tell({ type: 'start', config, place });
  return {
    child,
    done: done.promise,
    failed: failed.promise,
    exited: exited.promise,
    tell,
    end: () => end,
  };
}

/** Waits for all processes to leave; kills those that take longer than `patienceMs`. */
async function endAll(ranks: readonly RunningRank[], patienceMs: number): Promise<void> {
  const gone = Promise.all(ranks.map((rank) => rank.exited));
  const timer = setTimeout(() => {
    for (const { child } of ranks) {
      if (child.exitCode === null && child.signalCode === null) child.kill('SIGKILL');
    }
  }, patienceMs);
  await gone;
  clearTimeout(timer);
}

/** A port that nobody listens on at this moment. */
async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject).listen(0, HOST, resolve);
  });
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}

function deferred(): { readonly promise: Promise<void>; readonly resolve: () => void } {
  let resolve!: () => void;
  const promise = new Promise<void>((settle) => {
    resolve = settle;
  });
  return { promise, resolve };
}

function delay(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
