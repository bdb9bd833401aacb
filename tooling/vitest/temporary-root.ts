// Makes one folder for everything that tests write, and removes it at the end of the run. Tests
// cannot tidy up themselves: their processes are ended by signals, and a helper that many files
// share does not know which test is the last.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const PREFIX = join(tmpdir(), 'shardweave-tests-');

/** Vitest calls it once for each project. The folder of the first call serves all of them. */
export function setup(): (() => void) | undefined {
  if (process.env.TMPDIR?.includes('shardweave-tests-') === true) {
    return undefined;
  }
  const root = mkdtempSync(PREFIX);
  process.env.TMPDIR = root; // what os.tmpdir() of the tests' processes says, and of those that they start
  return () => rmSync(root, { recursive: true, force: true, maxRetries: 3 });
}
