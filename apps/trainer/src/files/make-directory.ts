// Makes a directory with everything above it.

import { existsSync, mkdirSync } from 'node:fs';
import { dirname } from 'node:path';

/**
 * Makes the levels one by one, because Node's recursive form never returns on file systems that
 * refuse, such as /proc.
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
