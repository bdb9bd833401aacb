// What a store on disk has committed, and which files a new value may take.

import { join } from 'node:path';
import { StoreCorruptError } from '../errors.js';
import { type FileLayer, readWhole, withFile, writeFully } from './file-layer.js';
import { freeSlot, MANIFEST, NEXT_MANIFEST, type Place, placeOf, slotFile } from './file-names.js';
import { decodeManifest, type Entry, encodeManifest, type Manifest } from './manifest.js';

// Note [generations]
// A key has a number, and each number has a few files, its slots. One slot holds the value of the
// last generation, another the value written since, and a write goes to the first slot that is
// neither. So a write that fails half-way harms nothing, and a step that writes each key once
// alternates between two files, which keep their room on the disk. A commit replaces the manifest
// by a rename: before it the old generation is what opens, after it the new one. With fsync the
// rename has to reach the device, too. Where that fails, either generation may open, so the values
// of both keep their slots until it succeeds, and no third generation begins. A value that is
// pinned has a second name, and the next write to its slot begins another file.

/** Where the files of a store are. */
export interface StoreDirectory {
  readonly directory: string;
  readonly files: FileLayer;
  readonly fsync: boolean;
}

export class Generations {
  readonly #directory: StoreDirectory;
  #number: number;
  /** The entries of the manifest. */
  #committed: ReadonlyMap<string, Entry>;
  /**
   * The entries of a manifest that was renamed into place, but whose rename a loss of power may
   * undo.
   */
  #renamed: ReadonlyMap<string, Entry> | undefined;
  #nextId: number;

  private constructor(directory: StoreDirectory, { generation, entries }: Manifest) {
    this.#directory = directory;
    this.#number = generation;
    this.#committed = entries;
    // The highest id is not the number of keys, because the ids of deleted keys are missing.
    let highest = 0;
    for (const { id } of entries.values()) {
      highest = Math.max(highest, id);
    }
    this.#nextId = highest + 1;
  }

  /** Opens the last generation, and removes what earlier owners have left unfinished. */
  static async open(directory: StoreDirectory): Promise<Generations> {
    const manifest = await openManifest(directory);
    await removeStrays(directory, manifest.entries);
    return new Generations(directory, manifest);
  }

  /** The number of the last generation. */
  get number(): number {
    return this.#number;
  }

  get entries(): ReadonlyMap<string, Entry> {
    return this.#committed;
  }

  /**
   * The place for a new value of `key`: a slot that holds neither a generation's value nor the
   * current one.
   */
  placeFor(key: string, current: Entry | undefined): Place {
    const taken = [current, this.#committed.get(key), this.#renamed?.get(key)];
    const id = (taken[0] ?? taken[1])?.id ?? this.#nextId++;
    return { id, slot: freeSlot(taken) };
  }

  /** Makes `entries` the next generation. Where that fails, a later call goes on from there. */
  async commit(entries: ReadonlyMap<string, Entry>): Promise<void> {
    const generation = this.#number + 1;
    await this.#syncRename();
    if (this.#directory.fsync) {
      await this.#syncChanged(entries);
    }
    await replaceManifest(this.#directory, { generation, entries });
    this.#renamed = entries;
    await this.#syncRename();
    this.#number = generation;
    // A file that stays behind here is a stray, which the next owner removes.
    await removeStrays(this.#directory, entries).catch(() => {});
  }

  /** Makes a rename durable. Where that is impossible, no further rename may follow. */
  async #syncRename(): Promise<void> {
    if (this.#renamed === undefined) {
      return;
    }
    const { files, directory, fsync } = this.#directory;
    if (fsync) {
      await files.syncDirectory(directory);
    }
    this.#committed = this.#renamed;
    this.#renamed = undefined;
  }

  async #syncChanged(entries: ReadonlyMap<string, Entry>): Promise<void> {
    const { files, directory } = this.#directory;
    for (const [key, entry] of entries) {
      if (this.#committed.get(key) === entry) {
        continue;
      }
      const opening = files.openToWrite(join(directory, slotFile(entry)));
      await withFile(opening, (file) => file.sync());
    }
  }
}

/** The manifest of the last generation, or that of an empty store where there is none. */
async function openManifest(where: StoreDirectory): Promise<Manifest> {
  const { files, directory, fsync } = where;
  const path = join(directory, MANIFEST);
  try {
    return decodeManifest(await readWhole(files, path), path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') {
      throw error;
    }
  }
  // The manifest is written before the first value. So values without one belong to a store that
  // has lost it.
  const value = (await files.list(directory)).find((name) => placeOf(name) !== undefined);
  if (value !== undefined) {
    throw new StoreCorruptError(
      `expected ${MANIFEST} beside ${value}, got none. ` +
        'Put it back, or delete the values to begin an empty store',
    );
  }
  const empty = { generation: 0, entries: new Map<string, Entry>() };
  await replaceManifest(where, empty);
  if (fsync) {
    await files.syncDirectory(directory);
  }
  return empty;
}

async function replaceManifest(where: StoreDirectory, manifest: Manifest): Promise<void> {
  const { files, directory, fsync } = where;
  const bytes = encodeManifest(manifest);
  const next = join(directory, NEXT_MANIFEST);
  await withFile(files.openToWrite(next), async (file) => {
    await writeFully(file, bytes, 0);
    await file.truncate(bytes.byteLength);
    if (fsync) {
      await file.sync();
    }
  });
  await files.rename(next, join(directory, MANIFEST));
}

/** Removes values whose number no key has, and a manifest that was not finished. */
async function removeStrays(
  { files, directory }: StoreDirectory,
  entries: ReadonlyMap<string, Entry>,
): Promise<void> {
  const known = new Set([...entries.values()].map(({ id }) => id));
  for (const name of await files.list(directory)) {
    const place = placeOf(name);
    const isStray = place !== undefined && !known.has(place.id);
    if (isStray || name === NEXT_MANIFEST) {
      await files.unlink(join(directory, name));
    }
  }
}
