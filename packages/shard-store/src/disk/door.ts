// Tells whether an owner lives that has its process number in another container: it listens on a
// socket in the directory, which the kernel closes when it dies, however it dies. Containers of one
// kernel reach it through the file system, whatever their networks and process numbers are.

import { open, readFile } from 'node:fs/promises';
import { connect, createServer } from 'node:net';

/** What the name of a door's file has behind the owner's; the id of the kernel's boot follows. */
export const DOOR = 'door.';

export interface Door {
  close(): Promise<void>;
}

/** Listens in the directory; undefined where platform or file system know no such sockets. */
export async function openDoor(directory: string, owner: string): Promise<Door | undefined> {
  const boot = await bootId();
  const place = boot === undefined ? undefined : await placeIn(directory);
  if (place === undefined) {
    return undefined;
  }
  const server = createServer((caller) => caller.destroy());
  const isOpen = await new Promise<boolean>((resolve) => {
    server.once('error', () => resolve(false));
    server.listen({ path: `${place.path}/${owner}.${DOOR}${boot}`, exclusive: true }, () =>
      resolve(true),
    );
  });
  server.unref();
  const close = async () => {
    await new Promise((resolve) => server.close(resolve)); // removes the file
    await place.close();
  };
  if (isOpen) {
    return { close };
  }
  await place.close();
  return undefined;
}

/**
 * Whether somebody listens at the door of an owner: undefined where it has none, or had it on
 * another machine or before this one started.
 */
export async function isBehindDoor(directory: string, owner: string): Promise<boolean | undefined> {
  const boot = await bootId();
  const place = boot === undefined ? undefined : await placeIn(directory);
  if (place === undefined) {
    return undefined;
  }
  const answer = await new Promise<string | undefined>((resolve) => {
    const caller = connect(`${place.path}/${owner}.${DOOR}${boot}`);
    caller.once('connect', () => {
      caller.destroy();
      resolve('connected');
    });
    caller.once('error', ({ code }: NodeJS.ErrnoException) => resolve(code));
  });
  await place.close();
  return answer === 'ECONNREFUSED' ? false : answer === 'ENOENT' ? undefined : true;
}

/**
 * A short path of the directory. The path of a socket has at most 107 bytes, so it goes through an
 * open file of this process.
 */
async function placeIn(directory: string) {
  const handle = await open(directory).catch(() => undefined);
  return handle && { path: `/proc/self/fd/${handle.fd}`, close: () => handle.close() };
}

/** A text that all containers of a running kernel share, and no other kernel has. */
async function bootId(): Promise<string | undefined> {
  const id = await readFile('/proc/sys/kernel/random/boot_id', 'utf8').catch(() => undefined);
  return id?.replace(/\W/g, '');
}
