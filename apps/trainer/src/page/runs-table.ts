// The table of all runs: sorted by the buttons in its head, filtered by a text, and chosen from by
// a box in each row.

import { formatBytes, formatCount } from '../format.js';
import { agoText } from '../times.js';
import { card, dataElement, element } from './look/element.js';
import { runMark } from './plot/legend.js';
import { MOST_CHOSEN, type RunRow } from './run/page-data.js';
import {
  differing,
  found,
  ordered,
  RUN_COLUMNS,
  type RunColumn,
  type RunOrder,
} from './runs-rows.js';
import { shortTexts } from './short-texts.js';

export interface RunsTableOptions {
  /** The address of a run's own page. */
  readonly hrefOf: (id: string) => string;
  /** The runs that are drawn, in the order of their colors. */
  readonly chosen: () => readonly string[];
  readonly onChoose: (id: string, isChosen: boolean) => void;
}

/** What stays of a row while its cells change, so that nobody loses the focus. */
interface Kept {
  readonly box: HTMLInputElement;
  readonly link: HTMLAnchorElement;
}

export class RunsTable {
  readonly root: HTMLElement;
  readonly #options: RunsTableOptions;
  readonly #filter = element('input', {
    type: 'search',
    autocomplete: 'off',
    spellcheck: 'false',
    placeholder: 'done lr<0.01',
  });
  readonly #count = element('p', { class: 'note', role: 'status' });
  readonly #head = element('tr');
  readonly #body = element('tbody');
  readonly #buttons = new Map<string, HTMLButtonElement>();
  readonly #kept = new Map<string, Kept>();
  #rows: readonly RunRow[] = [];
  #order: RunOrder = { key: 'atMs', isDescending: true };

  constructor(options: RunsTableOptions) {
    this.#options = options;
    this.#filter.addEventListener('input', () => this.update());
    const table = element('table', { class: 'runs' }, [
      element('caption', { class: 'sr' }, ['All runs']),
      element('thead', {}, [this.#head]),
      this.#body,
    ]);
    const scroller = { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'All runs' };
    this.root = card('runs', 'Runs', {
      beside: [element('label', { class: 'filter' }, ['Filter ', this.#filter])],
      below: [this.#count, element('div', scroller, [table])],
    });
  }

  show(rows: readonly RunRow[]): void {
    this.#rows = rows;
    this.update();
  }

  /** Draws the rows that the filter finds, in order. */
  update(): void {
    const shown = found(this.#rows, this.#filter.value);
    // Those of all runs, so that a filter takes no column away, nor the order by it.
    const columns = [...RUN_COLUMNS, ...differing(this.#rows)];
    const by = columns.find(({ key }) => key === this.#order.key) ?? RUN_COLUMNS[0]!;
    const focused = document.activeElement;
    this.#head.replaceChildren(
      element('th', { scope: 'col' }, [element('span', { class: 'sr' }, ['Drawn'])]),
      ...columns.map((column) => this.#headOf(column)),
    );
    const texts = columns.map(({ read }) => textsOf(this.#rows, read));
    this.#body.replaceChildren(
      ...ordered(shown, by.read, this.#order).map((row) => this.#rowOf(row, columns, texts)),
    );
    if (focused instanceof HTMLElement && this.root.contains(focused)) {
      focused.focus({ preventScroll: true });
    }
    this.#count.textContent = this.#countText(shown.length);
  }

  #countText(numShown: number): string {
    const { length } = this.#rows;
    if (length === 0) {
      return 'There is no run yet. One appears here by itself as soon as train --out writes into this folder.';
    }
    const runs = `${numShown === length ? '' : `${numShown} of `}${length} ${length === 1 ? 'run' : 'runs'}`;
    const chosen = this.#options.chosen().length;
    const most = chosen < MOST_CHOSEN ? '' : ', which is the most';
    return `${runs}. ${chosen === 0 ? 'Check some to draw them over each other' : `${chosen} drawn${most}`}.`;
  }

  #headOf({ key, title }: RunColumn): HTMLElement {
    const isSorted = this.#order.key === key;
    const direction = this.#order.isDescending ? 'descending' : 'ascending';
    const button = this.#buttons.get(key) ?? element('button', { type: 'button' }, [title]);
    if (!this.#buttons.has(key)) {
      this.#buttons.set(key, button);
      button.addEventListener('click', () => {
        const isDescending = this.#order.key === key && !this.#order.isDescending;
        this.#order = { key, isDescending };
        this.update();
      });
    }
    return element('th', { scope: 'col', 'aria-sort': isSorted ? direction : 'none' }, [button]);
  }

  #rowOf(row: RunRow, columns: readonly RunColumn[], texts: readonly Texts[]): HTMLElement {
    const { box, link } = this.#keptOf(row);
    const chosen = this.#options.chosen();
    const at = chosen.indexOf(row.id);
    box.checked = at >= 0;
    box.disabled = at < 0 && chosen.length >= MOST_CHOSEN;
    const mark = at < 0 ? [] : [runMark(at)];
    return element('tr', { 'data-run': row.id }, [
      element('td', {}, [element('span', { class: 'choice' }, [box, ...mark])]),
      element('th', { scope: 'row' }, [link]),
      ...columns.map((column, i) => element('td', {}, [cellOf(row, column, texts[i]!)])).slice(1),
    ]);
  }

  #keptOf({ id, name }: RunRow): Kept {
    const kept = this.#kept.get(id);
    if (kept !== undefined) {
      return kept;
    }
    const box = element('input', { type: 'checkbox', 'aria-label': `Draw ${name}` });
    box.addEventListener('change', () => this.#options.onChoose(id, box.checked));
    const link = element('a', { href: this.#options.hrefOf(id) }, [name]);
    const made = { box, link };
    this.#kept.set(id, made);
    return made;
  }
}

/** The short forms of a column's texts. */
type Texts = ReadonlyMap<string, string>;

function textsOf(rows: readonly RunRow[], read: RunColumn['read']): Texts {
  return shortTexts(rows.map(read).filter((value) => typeof value === 'string'));
}

function cellOf(row: RunRow, { key, read }: RunColumn, texts: Texts): Node {
  const { step, steps, state, sign, atMs } = row;
  switch (key) {
    case 'state':
      return element('span', { class: `badge ${state}`, title: sign }, [state]);
    case 'step':
      return dataElement(step, steps === undefined ? String(step) : `${step}/${steps}`);
    case 'loss':
    case 'validLoss':
      return dataElement(row[key], row[key]?.toFixed(4) ?? '');
    case 'tokensPerSecond':
      return dataElement(row[key], formatCount(row[key] ?? 0));
    case 'peakBytes':
      return dataElement(row[key], formatBytes(row[key] ?? 0));
    case 'atMs':
      return dataElement(atMs, agoText(Date.now() - (atMs ?? 0)));
    default: {
      const value = read(row);
      const text = value === undefined ? '\u2013' : String(value);
      const short = texts.get(text) ?? text;
      return element('span', short === text ? {} : { title: text }, [short]);
    }
  }
}
