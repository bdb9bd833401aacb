// One folder for all that tests write, removed when the run has ended: test processes are ended by
// signals, and a helper that many files share has no last test behind which it could tidy up.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const PREFIX = join(tmpdir(), 'shardweave-tests-');

/** Vitest calls it once a project; the first one's folder serves all. */
export function setup(): (() => void) | undefined {
  if (process.env.TMPDIR?.includes('shardweave-tests-') === true) {
    return undefined;
  }
  const root = mkdtempSync(PREFIX);
  process.env.TMPDIR = root; // what os.tmpdir() of the tests' processes says, and of those that they start
  return () => rmSync(root, { recursive: true, force: true, maxRetries: 3 });
}
