// The disk store's tests get directories here, which are removed when the tests of a file are done.

import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll } from 'vitest';

const made: string[] = [];

afterAll(async () => {
  await Promise.all(made.map((path) => rm(path, { recursive: true, force: true })));
});

export async function newDirectory(): Promise<string> {
  const path = await mkdtemp(join(tmpdir(), 'shardweave-store-'));
  made.push(path);
  return path;
}
