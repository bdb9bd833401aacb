// The text of a module that people write, by which a run that goes on knows that it has changed.

import { createHash } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { dirname, relative, resolve } from 'node:path';

/** The ends of paths that --model takes for a module. */
const MODULE_END = /\.([cm]?js|[cm]?ts)$/;
/** The files that a text imports by a path that begins with a dot. */
const IMPORTED = /\b(?:from|import)\s*\(?\s*(['"])(\.{1,2}\/[^'"\n]+)\1/g;

/** Whether --model `path` can only be a module. */
export function isModulePath(path: string): boolean {
  return MODULE_END.test(path);
}

/**
 * A hash of a file and of what it imports by relative paths, and they in turn. Packages and what
 * the code reads by itself, such as data, are no part of it.
 */
export function textHash(path: string): string {
  const hash = createHash('sha256');
  const seen = new Set<string>();
  const visit = (file: string): void => {
    if (seen.has(file) || !existsSync(file)) {
      return; // a name in a comment, perhaps; an import of nothing fails by itself
    }
    seen.add(file);
    const text = readFileSync(file, 'utf8');
    hash.update(JSON.stringify([relative(dirname(path), file), text]));
    for (const [, , imported] of text.matchAll(IMPORTED)) {
      visit(resolve(dirname(file), imported!));
    }
  };
  visit(path);
  return hash.digest('hex');
}
