// The runs under a folder as they come, change and go.

import { createHash } from 'node:crypto';
import { type Dirent, existsSync, readdirSync } from 'node:fs';
import { basename, join, relative, resolve } from 'node:path';
import { RUN_FILES } from '../files/run-files.js';
import type { RunRow, RunsMessages } from '../page/run/page-data.js';
import { RowReader } from './row-reader.js';

/** The folders below the one that is served: runs/a/b/c/d is found in runs. */
const DEPTH = 4;
/** More runs than a table is for; of a whole home directory one wants to see no more. */
const MOST_RUNS = 2000;
/** Looking for new runs takes at most this share of the time. */
const LOOK_SHARE = 0.05;
/** The characters of a run's id, 96 bits of them: two runs never have one by chance. */
const ID_CHARS = 16;

interface FoundRun {
  readonly reader: RowReader;
  row?: RunRow;
}

export class RunsFolder {
  readonly path: string;
  /** The runs by what pages call them. */
  readonly #runs = new Map<string, FoundRun>();
  #nextLookMs = 0;

  constructor(path: string) {
    this.path = resolve(path);
  }

  /** The rows as of the last refresh. */
  get rows(): readonly RunRow[] {
    return [...this.#runs.values()].flatMap(({ row }) => row ?? []);
  }

  /** A run, by what a page calls it; undefined where it is none of these. */
  find(id: string): { readonly directory: string; readonly row: RunRow } | undefined {
    const { reader, row } = this.#runs.get(id) ?? {};
    return reader && row && { directory: reader.directory, row };
  }

  /** Looks at everything; resolves to what has changed. */
  async refresh(): Promise<RunsMessages['changed']> {
    const gone = this.#forgetGone();
    const startMs = performance.now();
    if (startMs >= this.#nextLookMs) {
      this.#findNew();
      const endMs = performance.now();
      this.#nextLookMs = endMs + (endMs - startMs) / LOOK_SHARE;
    }
    const rows: RunRow[] = [];
    for (const run of this.#runs.values()) {
      const row = await run.reader.next();
      if (row !== undefined) {
        run.row = row;
        rows.push(row);
      }
    }
    return { rows, gone };
  }

  #forgetGone(): string[] {
    const gone = [...this.#runs].flatMap(([id, { reader }]) => (isRun(reader.directory) ? [] : id));
    for (const id of gone) {
      this.#runs.delete(id);
    }
    return gone;
  }

  #findNew(): void {
    for (const directory of runsIn(this.path, DEPTH)) {
      const below = relative(this.path, directory);
      const id = createHash('sha256').update(below).digest('base64url').slice(0, ID_CHARS);
      if (!this.#runs.has(id) && this.#runs.size < MOST_RUNS) {
        const name = below || basename(directory);
        this.#runs.set(id, { reader: new RowReader(directory, { id, name }) });
      }
    }
  }
}

function isRun(directory: string): boolean {
  return existsSync(join(directory, RUN_FILES.metrics));
}

/** The directories of runs in a folder, which may be one itself; links are not followed. */
function* runsIn(folder: string, depth: number): Generator<string> {
  const isOne = isRun(folder);
  if (isOne) {
    yield folder;
  }
  if (depth === 0 || (isOne && depth < DEPTH)) {
    return; // what is in a run is its own
  }
  for (const entry of entriesOf(folder)) {
    if (entry.isDirectory() && !entry.name.startsWith('.') && entry.name !== 'node_modules') {
      yield* runsIn(join(folder, entry.name), depth - 1);
    }
  }
}

function entriesOf(folder: string): Dirent[] {
  try {
    return readdirSync(folder, { withFileTypes: true });
  } catch {
    return []; // somebody else's, or gone meanwhile
  }
}
