// A directory with all above it.

import { existsSync, mkdirSync } from 'node:fs';
import { dirname } from 'node:path';

/**
 * Level by level: on file systems that refuse, such as /proc, Node's recursive form never returns.
 */
export function makeDirectory(path: string): void {
  if (existsSync(path)) {
    return;
  }
  makeDirectory(dirname(path));
  try {
    mkdirSync(path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') {
      throw error; // another process may have been first
    }
  }
}
