// Runs one set-up step, announced in one line. It is skipped when a stamp says that it was done for
// the same inputs. The stamp is removed before the work and written after it has succeeded, so an
// interrupted step is done again.
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { STATE } from './root.mjs';

/**
 * Does `work`, unless `isThere()` finds the results and the stamp `name` holds `key` or one of
 * `alsoDone`, which are keys of work that includes this one.
 * @param {{name: string, says: string, key: string, alsoDone?: string[], isThere: () => boolean,
 * work: () => unknown}} step
 */
export async function step({ name, says, key, alsoDone = [], isThere, work }) {
  if ([key, ...alsoDone].includes(readStamp(name)) && isThere()) {
    return;
  }
  const stamp = stampOf(name);
  rmSync(stamp, { force: true });
  announce(name, says);
  const started = performance.now();
  await work();
  mkdirSync(join(STATE, 'stamps'), { recursive: true });
  writeFileSync(stamp, key);
  announce(name, `done in ${((performance.now() - started) / 1000).toFixed(1)} s`);
}

/** Prints to stderr, so that stdout has only the output of the command itself. */
export function announce(name, text) {
  process.stderr.write(`set-up: ${name}: ${text}\n`);
}

/** The key for which a step was last done; undefined where it never was. */
export function readStamp(name) {
  try {
    return readFileSync(stampOf(name), 'utf8');
  } catch {
    return undefined;
  }
}

function stampOf(name) {
  return join(STATE, 'stamps', name);
}
