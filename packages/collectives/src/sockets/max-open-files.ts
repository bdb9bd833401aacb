// The number of files and connections that this process may have open. Node only.

import { readFileSync } from 'node:fs';

/**
 * The limit of `ulimit -n`, which Node has raised as far as it may; Infinity where nobody tells.
 */
export function maxOpenFiles(path = '/proc/self/limits'): number {
  try {
    const [, limit] = /^Max open files +(\d+)/m.exec(readFileSync(path, 'latin1')) ?? [];
    return limit === undefined ? Infinity : Number(limit);
  } catch {
    return Infinity; // only Linux has this file
  }
}
