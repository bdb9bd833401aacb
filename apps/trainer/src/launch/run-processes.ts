// Runs a job with one process per rank on this machine.

import { fork } from 'node:child_process';
import { randomBytes, randomInt } from 'node:crypto';
import { createServer } from 'node:net';
import type { PreparedRun } from '../run-config.js';
import type { ElasticPlace, FromRank, RankPlace, ToRank } from './messages.js';
import { RANK_PROCESS_VARIABLE } from './rank-process.js';
import {
  deferred,
  type RankHost,
  type RankListener,
  type WatchOptions,
  watchRanks,
} from './watch-ranks.js';

export interface RunProcessesOptions extends WatchOptions {
  /** The script that a rank process runs; it calls serveRank. */
  readonly entry: string;
}

const HOST = '127.0.0.1';
/** Ports below those that systems hand out: Linux from 32,768 on, others from 49,152. */
const PORTS = [10_000, 30_000] as const;
/** The characters that are kept of what a rank prints on stderr, to show them when it crashes. */
const STDERR_KEPT_CHARS = 4000;

/** See `watchRanks`. */
export async function runProcesses(
  config: PreparedRun,
  options: RunProcessesOptions,
): Promise<void> {
  const place = {
    worldSize: config.ranks,
    host: HOST,
    port: await freePort(),
    secret: randomBytes(32).toString('hex'),
  };
  await watchRanks(
    config,
    (rank, listener) =>
      startProcess({ entry: options.entry, rank, config, place: { ...place, rank } }, listener),
    options,
  );
}

export interface RankProcess {
  readonly entry: string;
  readonly rank: number;
  readonly config: PreparedRun;
  readonly place: RankPlace | ElasticPlace;
}

/** Starts a rank in a process of its own. */
export function startProcess(
  { entry, rank, config, place }: RankProcess,
  listener: RankListener,
): RankHost {
  const child = fork(entry, [], {
    env: { ...process.env, [RANK_PROCESS_VARIABLE]: String(rank) },
    stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
    serialization: 'advanced', // keeps a NaN loss, which JSON has no word for
  });
  const exited = deferred();
  let stderr = '';
  child.stderr?.on('data', (chunk: Buffer) => {
    stderr = (stderr + chunk.toString()).slice(-STDERR_KEPT_CHARS);
  });
  child.on('message', (message: FromRank) => listener.onMessage(message));
  child.on('error', (error) => {
    listener.onEnd({
      stderr,
      failure: { message: error.message, kind: 'failed' },
    });
    if (child.pid === undefined) {
      exited.resolve();
    }
  });
  child.on('exit', (exitCode, signal) => {
    listener.onEnd({ stderr, exitCode, signal });
    exited.resolve();
  });
  const tell = (message: ToRank) => {
    if (child.connected) {
      child.send(message, () => {});
    }
  };
  tell({ type: 'start', config, place });
  return {
    exited: exited.promise,
    tell,
    kill: () => {
      if (child.exitCode === null && child.signalCode === null) {
        child.kill('SIGKILL');
      }
    },
  };
}

/**
 * A port on which nothing listens at this moment, and below those that systems hand out by
 * themselves: until rank 0 has it, no connection and no server that asks for any port can take it.
 */
async function freePort(): Promise<number> {
  for (;;) {
    const port = randomInt(...PORTS);
    const server = createServer();
    const isFree = await new Promise<boolean>((resolve) => {
      server.once('error', () => resolve(false)).listen(port, HOST, () => resolve(true));
    });
    if (!isFree) {
      continue;
    }
    await new Promise((resolve) => server.close(resolve));
    return port;
  }
}
