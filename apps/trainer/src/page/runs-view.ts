// The page of all runs under a folder: their table, and below it those that are chosen; or, at its
// own address, one of them alone.

import { element } from './look/element.js';
import type { RunRow, RunsMessages } from './run/page-data.js';
import { type RunModel, runOf } from './run/run-model.js';
import { RunPage } from './run-page.js';
import { RunsTable } from './runs-table.js';

export interface RunsViewOptions {
  readonly token: string;
  /** The run whose own page this is. */
  readonly alone: string | undefined;
  readonly chosen: readonly string[];
  /** Called with the runs of which the command is to tell everything. */
  readonly onChosen: (ids: readonly string[]) => void;
}

export class RunsView {
  readonly #options: RunsViewOptions;
  readonly #table: RunsTable;
  readonly #heading: HTMLElement;
  readonly #message = element('p', { class: 'message', role: 'status' });
  readonly #rows = new Map<string, RunRow>();
  readonly #models = new Map<string, RunModel>();
  #chosen: readonly string[];
  #page: RunPage | undefined;

  constructor(options: RunsViewOptions) {
    this.#options = options;
    this.#chosen = options.chosen;
    this.#heading = element(options.alone === undefined ? 'h1' : 'span');
    this.#table = new RunsTable({
      hrefOf: (id) => this.#hashOf({ run: id }),
      chosen: () => this.#chosen,
      onChoose: (id, isChosen) => this.#choose(id, isChosen),
    });
    this.#message.hidden = true;
    const index = document.querySelector<HTMLElement>('#index')!;
    index.hidden = false;
    index.replaceChildren(
      ...(options.alone === undefined
        ? [this.#heading, this.#message, this.#table.root]
        : [element('p', {}, [this.#backLink(), ' / ', this.#heading]), this.#message]),
    );
    this.#clear();
  }

  hear<Name extends keyof RunsMessages>(name: Name, data: unknown): void {
    switch (name) {
      case 'runs': {
        const { folder, rows } = data as RunsMessages['runs'];
        this.#heading.textContent = `Runs in ${folder}`;
        this.#rows.clear();
        this.#showRows(rows, []);
        return;
      }
      case 'changed': {
        const { rows, gone } = data as RunsMessages['changed'];
        this.#showRows(rows, gone);
        return;
      }
      case 'chosen':
        this.#showChosen(data as RunsMessages['chosen']);
        return;
      case 'added': {
        const { id, records } = data as RunsMessages['added'];
        for (const record of records) {
          this.#models.get(id)?.add(record);
        }
        this.#page?.drawSoon();
        this.#sayEnd();
      }
    }
  }

  say(text: string): void {
    this.#message.textContent = text;
    this.#message.hidden = text === '';
  }

  #showRows(rows: readonly RunRow[], gone: readonly string[]): void {
    for (const row of rows) {
      this.#rows.set(row.id, row);
      const model = this.#models.get(row.id);
      if (model !== undefined) {
        model.isLive = row.state === 'live';
        model.sign = row.sign;
      }
    }
    for (const id of gone) {
      this.#rows.delete(id);
    }
    const { alone } = this.#options;
    if (alone === undefined) {
      this.#table.show([...this.#rows.values()]);
    } else {
      this.#heading.textContent = this.#rows.get(alone)?.name ?? '';
    }
    this.#page?.drawSoon();
  }

  /** Draws the runs of which everything is told from now on. */
  #showChosen(runs: RunsMessages['chosen']): void {
    this.#clear();
    for (const run of runs) {
      this.#models.set(run.id, runOf(run));
    }
    if (runs.length === 0) {
      this.say(this.#options.alone === undefined ? '' : 'This run is not there any more.');
      return;
    }
    const isLive = runs.some((run) => run.isLive === true);
    this.#page = new RunPage([...this.#models.values()], { isLive, hasTable: false });
    this.#page.draw();
    this.#sayEnd();
  }

  #sayEnd(): void {
    const [run] = this.#page?.runs ?? [];
    if (this.#options.alone !== undefined && run?.end?.report !== undefined) {
      this.#page!.sayEnd();
    }
  }

  #choose(id: string, isChosen: boolean): void {
    const others = this.#chosen.filter((other) => other !== id);
    this.#chosen = isChosen ? [...others, id] : others;
    this.#table.update();
    // The address remembers them over a reload; replacing it is no change that would cause one.
    history.replaceState(null, '', this.#hashOf({ runs: this.#chosen.join() }));
    if (this.#chosen.length === 0) {
      this.#clear();
    }
    this.#options.onChosen(this.#chosen);
  }

  #clear(): void {
    this.#page?.dispose();
    this.#page = undefined;
    this.#models.clear();
    for (const place of ['#top', '#main']) {
      document.querySelector(place)!.replaceChildren();
    }
    document.title = 'runs - shardweave';
  }

  #backLink(): HTMLElement {
    return element('a', { href: this.#hashOf({}) }, ['All runs']);
  }

  #hashOf(asked: Readonly<Record<string, string>>): string {
    const { token } = this.#options;
    const pairs = [['token', token], ...Object.entries(asked)];
    return `#${new URLSearchParams(pairs)}`;
  }
}
