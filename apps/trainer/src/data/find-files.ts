// The files that a path stands for: itself, those of a folder, or those that a pattern means.

import { readdirSync, statSync } from 'node:fs';
import { join, sep } from 'node:path';
import { UsageError } from '../errors.js';
import { globPattern, isGlob } from '../files/glob-pattern.js';

/** The files that are read of a folder, by their names; a table in Parquet is packed already. */
const KNOWN = /\.(txt|md|jsonl|ndjson|json|csv|tsv)(\.(gz|zst))?$|\.parquet$/i;

/**
 * The files of a path, in the order of their paths' bytes, which no locale changes. A path that is
 * there is itself, whatever is in its name; one that is not there is left to whoever opens it.
 * @throws {UsageError} for a folder or a pattern without files
 */
export function filesAt(path: string, flag: string): readonly string[] {
  const found = statOf(path);
  if (found?.isDirectory() === true) {
    const files = filesBelow(path, Number.POSITIVE_INFINITY).filter((name) => KNOWN.test(name));
    if (files.length === 0) {
      throw new UsageError(
        `${flag}: the folder ${path} has none of the files that are read of one: .txt, .md, .jsonl, .ndjson, .json, .csv, .tsv (each of these with .gz or .zst, too) and .parquet. Name a file of another kind itself, or by a pattern such as ${join(path, '**/*.log')}.`,
      );
    }
    return inOrder(files).map((name) => join(path, name));
  }
  if (found !== undefined || !isGlob(path)) {
    return [path];
  }
  const { folder, pattern } = patternOf(path);
  const depth = pattern.includes('**') ? Number.POSITIVE_INFINITY : pattern.split('/').length;
  const matching = globPattern(pattern);
  const files = filesBelow(folder, depth).filter((name) => matching.test(name));
  if (files.length === 0) {
    throw new UsageError(
      `${flag}: no file matches ${path}. In a pattern * stands for any part of a name, ** for folders too, ? for a character and [abc] for one of these; hidden files are left out.`,
    );
  }
  return inOrder(files).map((name) => join(folder, name));
}

/** Whether there is a folder in which a pattern can be looked for. */
export function hasFolder(path: string): boolean {
  return isGlob(path) && statOf(patternOf(path).folder)?.isDirectory() === true;
}

/** The folders before the first part of a path that is a pattern, and the rest. */
function patternOf(path: string): { readonly folder: string; readonly pattern: string } {
  const parts = path.split(sep === '/' ? '/' : /[\\/]/);
  const first = parts.findIndex(isGlob);
  const folder = parts.slice(0, first).join('/');
  const isRoot = first === 1 && folder === '';
  return { folder: isRoot ? '/' : folder || '.', pattern: parts.slice(first).join('/') };
}

/**
 * The files in a folder and in at most so many folders one in the other, by paths with slashes.
 * What is hidden is left out, and links to folders, which may lead in circles.
 */
function filesBelow(folder: string, depth: number): string[] {
  let entries: ReturnType<typeof namesIn>;
  try {
    entries = namesIn(folder);
  } catch {
    return []; // nothing can be read there, and no file is found
  }
  return entries.flatMap((entry) => {
    const { name } = entry;
    if (name.startsWith('.')) {
      return [];
    }
    if (entry.isDirectory()) {
      return depth > 1
        ? filesBelow(join(folder, name), depth - 1).map((path) => `${name}/${path}`)
        : [];
    }
    const isLink = entry.isSymbolicLink();
    const isFile = isLink ? statOf(join(folder, name))?.isFile() === true : entry.isFile();
    return isFile ? [name] : [];
  });
}

/** Undefined for what is not there, or can't be looked at, as links in a circle. */
function statOf(path: string) {
  try {
    return statSync(path, { throwIfNoEntry: false });
  } catch {
    return undefined;
  }
}

function namesIn(folder: string) {
  return readdirSync(folder, { withFileTypes: true });
}

function inOrder(paths: readonly string[]): string[] {
  return paths
    .map((path) => Buffer.from(path))
    .sort(Buffer.compare)
    .map(String);
}
