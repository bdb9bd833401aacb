// The cache of the Hub's files, in the layout that Hugging Face's own programs share:
//   models--org--name/refs/main             the commit that a branch was
//   models--org--name/blobs/ETAG            the contents
//   models--org--name/snapshots/COMMIT/...  links to them, under the files' names
//   models--org--name/.no_exist/COMMIT/...  empty files, for names that the commit does not have
//   models--org--name/.listings/COMMIT.json   the names and sizes of all files, by us alone
//   models--org--name/.heads/COMMIT/...     GGUF files with holes behind their headers, by us alone
// A dataset's directory is datasets--org--name. Without a listing nobody could tell whether what is
// in a snapshot is all of a split, and whole.

import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { cp, mkdir, rm, symlink } from 'node:fs/promises';
import { basename, dirname, join, relative, sep } from 'node:path';
import { makeDirectory } from '../files/make-directory.js';
import { writeText } from '../files/write-file.js';
import type { HubFile } from './hub-client.js';
import { hubNameOf, isCommit, type RepoKind } from './hub-name.js';

const NO_EXIST = '.no_exist';

/** Whether a directory is a snapshot of a commit that is known to have no file of that name. */
export function isLacking(directory: string, name: string): boolean {
  return existsSync(join(dirname(dirname(directory)), NO_EXIST, basename(directory), name));
}

/** Whether a file may be on the Hub, though the snapshot in this directory is without it. */
export function isLeftOut(directory: string, name: string): boolean {
  return hubNameOf(directory) !== undefined && !isLacking(directory, name);
}

/** One repository in the cache. */
export class CachedRepo {
  /** The directory of the repository. */
  readonly path: string;
  /** The directory of the lock that a download holds, beside the locks of other programs. */
  readonly locks: string;
  readonly #listings = new Map<string, ReadonlyMap<string, number> | undefined>();

  constructor(cache: string, repo: string, kind: RepoKind = 'model') {
    const name = `${kind}s--${repo.replace('/', '--')}`;
    this.path = join(cache, name);
    this.locks = join(cache, '.locks', name);
  }

  /** The directory of a commit's files. */
  snapshot(commit: string): string {
    return join(this.path, 'snapshots', commit);
  }

  /** The file that has no more of a GGUF file than its header. */
  head(commit: string, path: string): string {
    return join(this.path, '.heads', commit, path);
  }

  /** The content of that name. */
  blob(etag: string): string {
    return join(this.path, 'blobs', etag);
  }

  /** The commit that a revision was when it was last asked for; undefined where it never was. */
  commitOf(revision = 'main'): string | undefined {
    if (isCommit(revision)) {
      return existsSync(this.snapshot(revision)) ? revision : undefined;
    }
    const path = join(this.path, 'refs', revision);
    const commit = existsSync(path) ? readFileSync(path, 'utf8').trim() : undefined;
    return isCommit(commit) ? commit : undefined;
  }

  /** As setCommit, where the model is whole, for a cache that may be another user's to write. */
  noteCommit(revision: string | undefined, commit: string): void {
    try {
      if (this.commitOf(revision) !== commit) {
        this.setCommit(revision, commit);
      }
    } catch {
      // Who may not write there finds the commit again by asking.
    }
  }

  /** Remembers the commit of a branch or tag. Readers of the cache want its snapshot to exist. */
  setCommit(revision: string | undefined, commit: string): void {
    makeDirectory(this.snapshot(commit));
    if (!isCommit(revision)) {
      const path = join(this.path, 'refs', revision ?? 'main');
      makeDirectory(dirname(path));
      writeText(path, commit);
    }
  }

  /** Remembers that a commit has no files of these names. */
  setLacking(commit: string, names: readonly string[]): void {
    const directory = join(this.path, NO_EXIST, commit);
    for (const name of names) {
      const path = join(directory, name);
      makeDirectory(dirname(path));
      writeText(path, '');
    }
  }

  /** The bytes of all files of a commit, by their names; undefined where nobody asked for them. */
  listing(commit: string): ReadonlyMap<string, number> | undefined {
    if (!this.#listings.has(commit)) {
      this.#listings.set(commit, this.#readListing(commit));
    }
    return this.#listings.get(commit);
  }

  /** The names of the files in the snapshot of a commit, which may have more; none without it. */
  namesHere(commit: string): readonly string[] {
    const path = this.snapshot(commit);
    const found = existsSync(path) ? readdirSync(path, { recursive: true, encoding: 'utf8' }) : [];
    return found
      .filter((name) => statSync(join(path, name), { throwIfNoEntry: false })?.isFile() === true)
      .map((name) => name.replaceAll(sep, '/'));
  }

  setListing(commit: string, files: readonly HubFile[]): void {
    const sizes = new Map(files.map(({ path, byteLength }) => [path, byteLength]));
    this.#listings.set(commit, sizes);
    const path = this.#listingOf(commit);
    makeDirectory(dirname(path));
    writeText(path, JSON.stringify(Object.fromEntries(sizes)));
  }

  /** Whether a file of a commit is there, and as large as it is listed, where that is known. */
  has(commit: string, path: string): boolean {
    const found = statSync(join(this.snapshot(commit), path), { throwIfNoEntry: false });
    return found !== undefined && found.size === (this.listing(commit)?.get(path) ?? found.size);
  }

  /** Whether the header of a file of a commit is there. */
  hasHead(commit: string, path: string): boolean {
    const found = statSync(this.head(commit, path), { throwIfNoEntry: false });
    return found !== undefined && found.size === this.listing(commit)?.get(path);
  }

  #readListing(commit: string): ReadonlyMap<string, number> | undefined {
    try {
      return new Map(Object.entries(JSON.parse(readFileSync(this.#listingOf(commit), 'utf8'))));
    } catch {
      return undefined;
    }
  }

  #listingOf(commit: string): string {
    return join(this.path, '.listings', `${commit}.json`);
  }

  /** Gives a content its name in a snapshot: a link, or a copy where links are not allowed. */
  async link(etag: string, { commit, path }: { readonly commit: string; readonly path: string }) {
    const place = join(this.snapshot(commit), path);
    await mkdir(dirname(place), { recursive: true });
    await rm(place, { force: true }); // a copy of other bytes, or a link to what is removed
    await symlink(relative(dirname(place), this.blob(etag)), place).catch(
      async (error: NodeJS.ErrnoException) => {
        if (error.code !== 'EPERM') {
          throw error;
        }
        await cp(this.blob(etag), place);
      },
    );
  }
}
