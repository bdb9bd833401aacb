// Reads those files of a directory that are there.

import { existsSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';

/** The texts of the files of these names, but of those that do not exist. */
export async function readTexts(
  directory: string,
  names: readonly string[],
): Promise<Map<string, string>> {
  const texts = new Map<string, string>();
  for (const name of names) {
    const path = join(directory, name);
    if (existsSync(path)) {
      texts.set(name, await readFile(path, 'utf8'));
    }
  }
  return texts;
}
