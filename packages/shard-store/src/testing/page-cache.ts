// Tells whether writes went past the system's page cache, for tests of that. Node only.

import { execFileSync } from 'node:child_process';
import { constants } from 'node:fs';
import { mkdtemp, open, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const PAGE_BYTES = 4096;

/** The bytes of a file that the page cache holds, as util-linux's `fincore` tells them. */
export function cachedBytes(path: string): number {
  const args = ['--bytes', '--noheadings', '--output', 'RES', path];
  return Number(execFileSync('fincore', args));
}

/**
 * Why writes of temporary files can't go past the page cache here, or can't be seen to; undefined
 * where they can.
 */
export async function whyNotPastCache(): Promise<string | undefined> {
  if (process.platform !== 'linux') {
    return 'only Linux has O_DIRECT';
  }
  try {
    execFileSync('fincore', ['--version']);
  } catch {
    return 'fincore of util-linux is not here';
  }
  const directory = await mkdtemp(join(tmpdir(), 'shardweave-pages-'));
  const flags = constants.O_RDWR | constants.O_CREAT | constants.O_DIRECT;
  try {
    const handle = await open(join(directory, 'probe'), flags);
    const page = new Uint8Array(new WebAssembly.Memory({ initial: 1 }).buffer, 0, PAGE_BYTES);
    await handle.write(page, 0, PAGE_BYTES, 0).finally(() => handle.close());
    return undefined;
  } catch {
    return 'the file system of temporary files has only the page cache';
  } finally {
    await rm(directory, { recursive: true });
  }
}
