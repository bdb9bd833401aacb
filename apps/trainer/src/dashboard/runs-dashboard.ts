// Shows all runs under a folder, live and finished: a row of each, and everything of those that
// somebody has chosen. It only reads, and only while somebody looks.

import { linesOfEach } from '../output/report.js';
import { MOST_CHOSEN, type RunsMessages } from '../page/run/page-data.js';
import { packSteps } from '../page/run/step-table.js';
import { FollowedRun } from './followed-run.js';
import { PageServer, type PageServerOptions, type Reader } from './page-server.js';
import { RunsFolder } from './runs-folder.js';

/** A live run is shown at most two seconds late; this is most of what passes until it is read. */
const LOOK_EVERY_MS = 700;

/** Somebody who looks, and at which runs. */
interface Looker {
  readonly reader: Reader;
  readonly followed: ReadonlyMap<string, FollowedRun>;
}

export class RunsDashboard {
  readonly #folder: RunsFolder;
  readonly #lookers = new Map<Reader, Looker>();
  #server: PageServer | undefined;
  #timer: NodeJS.Timeout | undefined;
  /** What is under way; the next look begins behind it. */
  #turn: Promise<void> = Promise.resolve();

  private constructor(folder: RunsFolder) {
    this.#folder = folder;
  }

  /** @throws {UsageError} where the port or the token can't be used */
  static async open(
    folder: string,
    options: Omit<PageServerOptions, 'flag'>,
  ): Promise<RunsDashboard> {
    const made = new RunsDashboard(new RunsFolder(folder));
    await made.#folder.refresh();
    const served = {
      onReader: (reader: Reader, query: URLSearchParams) => made.#greet(reader, query),
      onLeft: (reader: Reader) => made.#leave(reader),
    };
    made.#server = await PageServer.open(served, { ...options, flag: '--port' });
    return made;
  }

  /** The address with the token in its fragment. */
  get url(): string {
    return this.#server!.url;
  }

  /** The number of runs that were found last. */
  get numRuns(): number {
    return this.#folder.rows.length;
  }

  async close(): Promise<void> {
    clearTimeout(this.#timer);
    this.#lookers.clear();
    await this.#server!.close();
    await this.#turn;
  }

  /** Tells a reader of all runs, and everything of those that it names. */
  #greet(reader: Reader, query: URLSearchParams): void {
    const names = query.get('runs')?.split(',').filter(Boolean);
    const asked = [...new Set(names)].slice(0, MOST_CHOSEN);
    const most = linesOfEach(Math.max(1, asked.length));
    this.#soon(async () => {
      await this.#look(); // so that rows that come later are new to this reader, too
      const found = asked.flatMap((id) => {
        const run = this.#folder.find(id);
        return run === undefined ? [] : { id, run: new FollowedRun(run.directory, most) };
      });
      const looker = { reader, followed: new Map(found.map(({ id, run }) => [id, run])) };
      const { path: folder, rows } = this.#folder;
      reader.send('runs', { folder, rows } satisfies RunsMessages['runs']);
      for (const { run } of found) {
        await run.next();
      }
      if (asked.length > 0) {
        this.#tellChosen(looker);
      }
      this.#lookers.set(reader, looker);
    });
  }

  #leave(reader: Reader): void {
    this.#soon(async () => {
      this.#lookers.delete(reader);
    });
  }

  /** Does something behind what is under way, and looks again after a while. */
  #soon(work: () => Promise<void>): void {
    clearTimeout(this.#timer);
    this.#turn = this.#turn
      .then(work)
      .catch(() => {}) // A run that was removed while it was read is gone with the next look.
      .then(() => {
        clearTimeout(this.#timer);
        if (this.#lookers.size > 0) {
          this.#timer = setTimeout(() => this.#soon(() => this.#look()), LOOK_EVERY_MS);
        }
      });
  }

  async #look(): Promise<void> {
    const changed = await this.#folder.refresh();
    for (const looker of this.#lookers.values()) {
      if (changed.rows.length > 0 || changed.gone.length > 0) {
        looker.reader.send('changed', changed);
      }
      await this.#tellAdded(looker, changed);
    }
  }

  /** Tells what has come of the runs that somebody has chosen. */
  async #tellAdded(looker: Looker, { gone }: RunsMessages['changed']): Promise<void> {
    const { reader, followed } = looker;
    let isNew = false;
    for (const [id, run] of followed) {
      if (gone.includes(id)) {
        continue; // What was told of it stays on the page.
      }
      const found = await run.next();
      if (found === 'new') {
        isNew = true;
      } else if (found.length > 0) {
        const lines = found.flatMap((record) => (record.type === 'step' ? lineOf(record) : []));
        const events = found.filter((record) => record.type !== 'step');
        const records = packSteps(events, lines);
        reader.send('added', { id, records } satisfies RunsMessages['added']);
      }
    }
    if (isNew) {
      this.#tellChosen(looker);
    }
  }

  #tellChosen({ reader, followed }: Looker): void {
    const chosen = [...followed].flatMap(([id, { history }]) => {
      const row = this.#folder.find(id)?.row;
      if (row === undefined) {
        return [];
      }
      const { name, state, sign } = row;
      const told = { state, isLive: state === 'live', ...(sign !== undefined && { sign }) };
      return { id, name, ...told, records: history.records() };
    });
    reader.send('chosen', chosen satisfies RunsMessages['chosen']);
  }
}

function lineOf<T extends { readonly type: 'step' }>({ type: _, ...line }: T): Omit<T, 'type'> {
  return line;
}
