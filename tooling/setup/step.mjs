// One set-up step: announced in a line, skipped when a stamp says that it was done for the same
// inputs. The stamp goes before the work starts and comes back after it succeeded, so a step that
// was interrupted is done again.
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { STATE } from './root.mjs';

/**
 * Does `work` unless the stamp `name` holds `key`, or one of `alsoDone` (keys of work that includes
 * this), and `isThere()` finds the results in place.
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

/** On stderr: a command's own output stays clean on stdout. */
export function announce(name, text) {
  process.stderr.write(`set-up: ${name}: ${text}\n`);
}

/** The key that a step was last done for, or `undefined`. */
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
