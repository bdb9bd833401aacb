// Keeps the tokens of data sets that tests make in a directory of the test's process. The user's
// cache may hold tokens of other versions of the code.
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const PREFIX = join(tmpdir(), 'shardweave-test-cache-');

// Files that share a process share this directory, and so do the processes that they start.
if (process.env.SHARDWEAVE_CACHE?.startsWith(PREFIX) !== true) {
  process.env.SHARDWEAVE_CACHE = mkdtempSync(PREFIX);
}
