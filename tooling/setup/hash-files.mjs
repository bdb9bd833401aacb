// The key of a set-up step: a hash over the names and contents of the files that it reads.
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { ROOT } from './root.mjs';

/** What no step reads: results, dependencies, tests and what tests leave behind. */
const SKIPPED = new Set([
  'node_modules',
  'dist',
  'generated',
  'test',
  '.turbo',
  '.shardweave',
  'runs',
  'coverage',
]);

/**
 * @param {string[]} paths files or folders relative to the root; absent ones count as absent
 * @param {(path: string) => boolean} [isWanted] which files of a folder count
 */
export function hashFiles(paths, isWanted = () => true) {
  // The platform is part of the key, since a tree that two machines share holds native parts of
  // only one of them.
  const hash = createHash('sha256').update(
    `${process.platform} ${process.arch} ${process.versions.modules}\0`,
  );
  for (const path of paths.flatMap((start) => listFiles(start, isWanted)).sort()) {
    hash
      .update(`${path}\0`)
      .update(readFileSync(join(ROOT, path)))
      .update('\0');
  }
  return hash.digest('hex');
}

/**
 * The workspace's package folders, relative to the root. The bench is not among them, as it has a
 * lock file of its own.
 */
export function packageFolders() {
  const inside = (folder) => readdirSync(join(ROOT, folder)).map((name) => `${folder}/${name}`);
  return [...inside('packages'), ...inside('apps'), 'tooling'];
}

function listFiles(path, isWanted) {
  const stat = statSync(join(ROOT, path), { throwIfNoEntry: false });
  if (!stat?.isDirectory()) {
    return stat?.isFile() && isWanted(path) ? [path] : [];
  }
  return readdirSync(join(ROOT, path))
    .filter((name) => !SKIPPED.has(name))
    .flatMap((name) => listFiles(`${path}/${name}`, isWanted));
}
