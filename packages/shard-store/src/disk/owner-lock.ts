// One owner a directory: Node has no file locks that a kill releases, so an owner is a file
// `owner.<n>` that names a process, and the highest number counts. See Note [owners].

import { readFile } from 'node:fs/promises';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { StoreLockedError } from '../errors.js';
import { type FileLayer, readWhole, withFile, writeFully } from './file-layer.js';

// Note [owners]
// Numbers only rise: whoever finds the highest owner gone creates the next number, which one process
// can do, and then looks whether it is the highest. Somebody who slept between looking and creating
// may create a number that was removed meanwhile, but then a higher one is there, and it withdraws.
// For that the last number stays when its owner leaves, marked as released.

const OWNER = /^owner\.(\d+)$/;
/** A file without a record is one being written, or its writer was killed: it gets this long. */
const RECORD_TRIES = 20;
const RECORD_PAUSE_MS = 50;

interface OwnerRecord {
  readonly pid: number;
  readonly host: string;
  /** When the process started, where the platform tells: numbers of processes are used again. */
  readonly startTime: string | null;
  readonly released?: true;
}

export interface OwnerLock {
  release(): Promise<void>;
}

/** Makes this process the owner of a directory, or throws StoreLockedError. */
export async function lockDirectory(files: FileLayer, directory: string): Promise<OwnerLock> {
  const record: OwnerRecord = {
    pid: process.pid,
    host: hostname(),
    startTime: await startTimeOf(process.pid),
  };
  for (;;) {
    const highest = Math.max(0, ...(await ownersIn(files, directory)));
    if (highest > 0) await expectGone(files, directory, highest);
    const path = join(directory, `owner.${highest + 1}`);
    if (!(await createRecord(files, path, record))) continue;
    const others = (await ownersIn(files, directory)).filter((number) => number !== highest + 1);
    if (others.some((number) => number > highest + 1)) {
      await files.unlink(path).catch(ignoreMissing);
      continue;
    }
    for (const number of others) {
      await files.unlink(join(directory, `owner.${number}`)).catch(ignoreMissing);
    }
    return { release: () => writeRecord(files, path, { ...record, released: true }) };
  }
}

async function ownersIn(files: FileLayer, directory: string): Promise<readonly number[]> {
  return (await files.list(directory)).flatMap((name) => {
    const match = OWNER.exec(name);
    return match ? [Number(match[1])] : [];
  });
}

/** Returns where the owner has left or died. */
async function expectGone(files: FileLayer, directory: string, number: number): Promise<void> {
  const path = join(directory, `owner.${number}`);
  for (let tries = 0; tries < RECORD_TRIES; tries++) {
    const record = await readRecord(files, path);
    if (record === 'missing') return;
    if (record !== 'unfinished') {
      if (record.released || !(await isAlive(record))) return;
      throw new StoreLockedError(
        `openDiskStore: expected nobody else in ${directory}, got process ${record.pid} on ` +
          `${record.host}. Close its store, or delete ${path} if it is gone.`,
      );
    }
    await new Promise((resolve) => setTimeout(resolve, RECORD_PAUSE_MS));
  }
}

async function createRecord(files: FileLayer, path: string, record: OwnerRecord): Promise<boolean> {
  try {
    await withFile(files.create(path), (file) =>
      writeFully(file, new TextEncoder().encode(JSON.stringify(record)), 0),
    );
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false;
    await files.unlink(path).catch(() => {});
    throw error;
  }
}

async function writeRecord(files: FileLayer, path: string, record: OwnerRecord): Promise<void> {
  const bytes = new TextEncoder().encode(JSON.stringify(record));
  await withFile(files.openToWrite(path), async (file) => {
    await writeFully(file, bytes, 0);
    await file.truncate(bytes.byteLength);
  });
}

async function readRecord(
  files: FileLayer,
  path: string,
): Promise<OwnerRecord | 'missing' | 'unfinished'> {
  try {
    return JSON.parse(new TextDecoder().decode(await readWhole(files, path))) as OwnerRecord;
  } catch (error) {
    if (error instanceof SyntaxError) return 'unfinished';
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return 'missing';
    throw error;
  }
}

/** Whether the process may still be there; on another machine nobody can tell from here. */
async function isAlive({ pid, host, startTime }: OwnerRecord): Promise<boolean> {
  if (host !== hostname()) return true;
  try {
    process.kill(pid, 0);
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
  const now = await startTimeOf(pid);
  return now === null ? startTime === null : now === startTime;
}

/** Start of a living process in ticks since boot; null where the platform keeps no such file. */
async function startTimeOf(pid: number): Promise<string | null> {
  const stat = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => null);
  if (stat === null) return null;
  // The second field is a name in brackets that may hold anything; fields count from its end.
  const [state, ...rest] = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  return state === 'Z' ? 'zombie' : (rest[18] ?? null);
}

function ignoreMissing(error: NodeJS.ErrnoException): void {
  if (error.code !== 'ENOENT') throw error;
}
