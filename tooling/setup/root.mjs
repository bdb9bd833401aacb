// The repository's root, and the folder for what set-up makes.
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

export const ROOT = dirname(dirname(dirname(fileURLToPath(import.meta.url))));

/**
 * The folder of stamps and downloaded drivers. Git ignores it, and it may be deleted at any time.
 */
export const STATE = join(ROOT, '.shardweave');
