// Tokens of data sets that tests make: kept in a directory of the test's process, and not in the
// user's cache, where those of other versions of the code may lie.
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const PREFIX = join(tmpdir(), 'shardweave-test-cache-');

// Files that share a process share the directory, and so do the processes that they start.
if (process.env.SHARDWEAVE_CACHE?.startsWith(PREFIX) !== true) {
  process.env.SHARDWEAVE_CACHE = mkdtempSync(PREFIX);
}
