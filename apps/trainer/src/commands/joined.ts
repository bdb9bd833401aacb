// The ranks that commands of this user have joined to jobs from this machine, as files: each is
// touched as long as its rank is there, and a rank whose file is gone leaves.

import { randomUUID } from 'node:crypto';
import { mkdir, readdir, readFile, rm, stat, utimes, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { cacheDirectory } from '../data/token-cache.js';

/** The time between two looks. */
const LOOK_MS = 500;
/** A file that was not touched for so long is that of a command that was killed. */
const STALE_MS = 10_000;

interface Joined {
  readonly address: string;
}

/**
 * Notes that a rank is part of a job, until it is disposed of.
 * @param onAsked called once where the rank is to leave
 */
export async function noteJoined(
  address: string,
  env: NodeJS.ProcessEnv,
  onAsked: () => void,
): Promise<AsyncDisposable> {
  const directory = directoryOf(env);
  await mkdir(directory, { recursive: true });
  const path = join(directory, `${randomUUID()}.json`);
  await writeFile(path, JSON.stringify({ address } satisfies Joined), { mode: 0o600 });
  const timer = setInterval(() => {
    const now = new Date();
    utimes(path, now, now).catch(() => {
      clearInterval(timer);
      onAsked();
    });
  }, LOOK_MS);
  return {
    [Symbol.asyncDispose]: async () => {
      clearInterval(timer);
      await rm(path, { force: true });
    },
  };
}

/**
 * Asks ranks to leave: those of one job, or all.
 * @returns the addresses of the jobs of those that were asked
 */
export async function askToLeave(
  address: string | undefined,
  env: NodeJS.ProcessEnv,
): Promise<readonly string[]> {
  const directory = directoryOf(env);
  const names = await readdir(directory).catch(() => []);
  const asked: string[] = [];
  for (const name of names) {
    const path = join(directory, name);
    const { mtimeMs } = await stat(path);
    const joined = JSON.parse(await readFile(path, 'utf8')) as Joined;
    if (address === undefined || joined.address === address) {
      await rm(path, { force: true });
      asked.push(...(Date.now() - mtimeMs < STALE_MS ? [joined.address] : []));
    }
  }
  return asked;
}

function directoryOf(env: NodeJS.ProcessEnv): string {
  return join(cacheDirectory(undefined, env), 'joined');
}
