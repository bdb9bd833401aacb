// Small file systems in memory, which fill up as disks do.

import { execFileSync } from 'node:child_process';
import { rmdirSync, rmSync, statfsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { newFolder } from '../../../../tooling/test-kit/folders.ts';

export const NO_MOUNT = 'mounting a file system in memory needs root';

export interface SmallDisk extends Disposable {
  readonly path: string;
  /** Leaves so many bytes free by a file beside what is there. */
  fill(freeBytes: number): void;
  /** Removes that file. */
  clear(): void;
}

/** Returns undefined where mounting is not permitted. */
export function openSmallDisk(bytes: number): SmallDisk | undefined {
  const path = newFolder();
  try {
    const options = ['-t', 'tmpfs', '-o', `size=${bytes}`];
    execFileSync('mount', [...options, 'tmpfs', path], { stdio: 'ignore' });
  } catch {
    rmdirSync(path);
    return undefined;
  }
  const ballast = join(path, 'ballast');
  const clear = () => rmSync(ballast, { force: true });
  return {
    path,
    clear,
    fill: (freeBytes) => {
      clear();
      const { bavail, bsize } = statfsSync(path);
      writeFileSync(ballast, new Uint8Array(Math.max(0, bavail * bsize - freeBytes)));
    },
    [Symbol.dispose]: () => {
      execFileSync('umount', ['--lazy', path], { stdio: 'ignore' });
      rmdirSync(path);
    },
  };
}
