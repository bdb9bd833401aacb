// Where things are: the repository's root, and the folder that holds what set-up made.
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

export const ROOT = dirname(dirname(dirname(fileURLToPath(import.meta.url))));

/** Ignored by git, safe to delete: stamps of finished steps, and downloaded drivers. */
export const STATE = join(ROOT, '.shardweave');
