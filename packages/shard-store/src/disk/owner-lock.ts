// Gives a directory one owner at a time. Node has no file locks that a kill releases, so an owner
// is a number with the name of a process, and the highest number counts. See Note [owners].

import { readFile, readlink } from 'node:fs/promises';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { StoreLockedError } from '../errors.js';
import { DOOR, isBehindDoor, openDoor } from './door.js';
import type { FileLayer } from './file-layer.js';
import { OWNER } from './file-names.js';

// Note [owners]
// An owner is an empty file `shardweave-owner.<n>`, which only one process can create, and a second
// file whose name tells who it is, which ends in `.<process>.<start>.<space>.<machine>.<host>`. The
// files are empty so that a full disk has room for them, and go when the owner leaves. A process
// that finds the highest owner gone creates the next number, and then looks again. It may have
// slept in between, while others came and went and the numbers began again at 1. So whoever creates
// a number withdraws from a higher one and from a lower one that lives: as each creates before it
// looks, of any two at least one sees the other.
//
// A process number means something only within one space of them: each container has its own, even
// where it has the host's name, and so has each machine that shares the directory. An owner in
// another space is asked at its door (see door.ts) where both run on one kernel, as a container
// that was made anew does. Any other may live, for all that can be told from here.

const OWNER_FILE = /^shardweave-owner\.(\d+)(?:\.(door\.\w+|\d+\.\w*\.\d*\.\w*\..*))?$/;
/**
 * A number without a name is about to get one, or its process was killed. It gets 20 times 50 ms.
 */
const NAME_TRIES = 20;
const NAME_PAUSE_MS = 50;

/** The names that belong to each number; an empty list where there is only the number. */
type Owners = Map<number, readonly string[]>;

/** The ownership of a directory, held until it is released. */
export interface OwnerLock {
  release(): Promise<void>;
}

/** Makes this process the owner of a directory, or throws StoreLockedError. */
export async function lockDirectory(files: FileLayer, directory: string): Promise<OwnerLock> {
  const start = (await startTimeOf(process.pid)) ?? '';
  const space = await spaceOfNumbers();
  const name = `${process.pid}.${start}.${space}`;
  for (;;) {
    const highest = Math.max(0, ...(await ownersIn(files, directory)).keys());
    if (highest > 0) {
      await expectGone(files, directory, { number: highest, space });
    }
    const number = highest + 1;
    const own = join(directory, `${OWNER}.${number}`);
    if (!(await createEmpty(files, own))) {
      continue;
    }
    const door = await openDoor(directory, `${OWNER}.${number}`);
    const release = async () => {
      await door?.close();
      await remove(files, directory, number, [name]);
    };
    try {
      await createEmpty(files, `${own}.${name}`);
      const others = await ownersIn(files, directory);
      others.delete(number);
      if ([...others.keys()].every((other) => other < number)) {
        for (const [other, names] of others) {
          // One that has no name yet has still to look, and withdraws.
          if (nameIn(names) !== undefined) {
            await expectGone(files, directory, { number: other, space });
          }
          await remove(files, directory, other, names);
        }
        return { release };
      }
    } catch (error) {
      await release().catch(() => {}); // the first error is the one to report
      throw error;
    }
    await release();
  }
}

async function ownersIn(files: FileLayer, directory: string): Promise<Owners> {
  const owners = new Map<number, string[]>();
  for (const file of await files.list(directory)) {
    const match = OWNER_FILE.exec(file);
    if (match === null) {
      continue;
    }
    const number = Number(match[1]);
    const names = owners.get(number) ?? [];
    if (match[2] !== undefined) {
      names.push(match[2]);
    }
    owners.set(number, names);
  }
  return owners;
}

function nameIn(names: readonly string[]): string | undefined {
  return names.find((file) => !file.startsWith(DOOR));
}

/** Returns where the owner has left or died, and throws StoreLockedError where it has not. */
async function expectGone(
  files: FileLayer,
  directory: string,
  { number, space }: { readonly number: number; readonly space: string },
): Promise<void> {
  for (let tries = 0; tries < NAME_TRIES; tries++) {
    const names = (await ownersIn(files, directory)).get(number);
    if (names === undefined) {
      return;
    }
    const name = nameIn(names);
    if (name !== undefined) {
      const { isHere, isThere, pid, host } = await ownerBehind(directory, { number, name, space });
      if (isThere === false) {
        return;
      }
      const where = isHere ? '' : ', in another container or on another machine';
      const owner = `process ${pid} on ${host}${where}`;
      const file = `${OWNER}.${number}.${name}`;
      throw new StoreLockedError(
        `lock: expected nobody else in ${directory}, got ${owner}. ` +
          `Close its store, or delete ${file} if it is gone.`,
        { owner, file: isHere ? undefined : join(directory, file) },
      );
    }
    await new Promise((resolve) => setTimeout(resolve, NAME_PAUSE_MS));
  }
}

/**
 * Whether `directory` has an owner, asked without touching it: undefined where it has one of which
 * nobody can tell from here, as on another machine.
 */
export async function hasOwner(files: FileLayer, directory: string): Promise<boolean | undefined> {
  const owners = await ownersIn(files, directory);
  const number = Math.max(0, ...owners.keys());
  const name = nameIn(owners.get(number) ?? []);
  if (name === undefined) {
    return number > 0 ? undefined : false; // a number without a name is about to get one
  }
  const space = await spaceOfNumbers();
  return (await ownerBehind(directory, { number, name, space })).isThere;
}

/** The process that an owner's file names, and whether it lives; undefined: it may. */
async function ownerBehind(
  directory: string,
  { number, name, space }: { number: number; name: string; space: string },
): Promise<{ isHere: boolean; isThere: boolean | undefined; pid: number; host: string }> {
  const [pid, start, ...rest] = name.split('.');
  const isHere = rest.join('.') === space;
  const isThere = isHere
    ? await isAlive({ pid: Number(pid), start: start! })
    : await isBehindDoor(directory, `${OWNER}.${number}`);
  return { isHere, isThere, pid: Number(pid), host: decodeURIComponent(rest.slice(2).join('.')) };
}

/** Creates an empty file; false where there is one already. */
async function createEmpty(files: FileLayer, path: string): Promise<boolean> {
  try {
    const file = await files.create(path);
    await file.close();
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') {
      return false;
    }
    throw error;
  }
}

async function remove(
  files: FileLayer,
  directory: string,
  number: number,
  names: readonly string[],
): Promise<void> {
  // The number goes last, because others would have to wait for the name of a number without one.
  for (const suffix of [...names.map((name) => `.${name}`), '']) {
    await files.unlink(join(directory, `${OWNER}.${number}${suffix}`)).catch(ignoreMissing);
  }
}

/**
 * The space in which this process has its number: the number of its namespace, the machine's id and
 * its name. The first two are empty where the platform does not tell them. A machine keeps them
 * when it starts again, outside of containers.
 */
async function spaceOfNumbers(): Promise<string> {
  const namespace = await readlink('/proc/self/ns/pid').catch(() => '');
  const machine = await readFile('/etc/machine-id', 'utf8').catch(() => '');
  const numbers = [namespace.replace(/\D/g, ''), machine.replace(/\W/g, '')];
  return [...numbers, encodeURIComponent(hostname())].join('.');
}

/** Whether a process of this space may still be running. */
async function isAlive(owner: { readonly pid: number; readonly start: string }): Promise<boolean> {
  try {
    process.kill(owner.pid, 0);
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
  const now = await startTimeOf(owner.pid);
  return now === null ? owner.start === '' : now === owner.start;
}

/** The start of a living process in ticks since boot; null where the platform does not tell. */
async function startTimeOf(pid: number): Promise<string | null> {
  const stat = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => null);
  if (stat === null) {
    return null;
  }
  // The second field is a name in brackets that may contain anything; fields are counted from its
  // end.
  const [state, ...rest] = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  return state === 'Z' ? 'zombie' : (rest[18] ?? null);
}

function ignoreMissing(error: NodeJS.ErrnoException): void {
  if (error.code !== 'ENOENT') {
    throw error;
  }
}
