// The table beside a plot: the same numbers, one page at a time, made when somebody opens it.

import { type Child, element } from './look/element.js';

const PAGE_ROWS = 50;

export interface TableContent {
  readonly columns: readonly string[];
  readonly numRows: number;
  /** The cells of row `index`, where 0 is the newest; the first cell names the row. */
  row(index: number): readonly Child[];
}

export class TableView {
  readonly root: HTMLDetailsElement;
  readonly #title: string;
  readonly #content: () => TableContent;
  readonly #body: HTMLElement;
  #page = 0;

  constructor(title: string, content: () => TableContent) {
    this.#title = title;
    this.#content = content;
    this.#body = element('div', { class: 'table-body' });
    this.root = element('details', { class: 'table' }, [
      element('summary', {}, ['Table', element('span', { class: 'sr' }, [`: ${title}`])]),
      this.#body,
    ]);
    this.root.addEventListener('toggle', () => this.update());
  }

  /** Draws the rows anew, if they are visible. */
  update(): void {
    if (!this.root.open) {
      return;
    }
    const content = this.#content();
    const numPages = Math.max(1, Math.ceil(content.numRows / PAGE_ROWS));
    this.#page = Math.min(this.#page, numPages - 1);
    const first = this.#page * PAGE_ROWS;
    const end = Math.min(first + PAGE_ROWS, content.numRows);
    const rows = Array.from({ length: end - first }, (_, i) => tableRow(content.row(first + i)));
    const scroller = tableOf(this.#title, content.columns, element('tbody', {}, rows));
    const scrollTop = this.#body.firstElementChild?.scrollTop ?? 0;
    const isPaging = this.#body.contains(document.activeElement);
    const focused = isPaging ? document.activeElement?.getAttribute('data-key') : undefined;
    this.#body.replaceChildren(scroller, ...(numPages > 1 ? [this.#pager(numPages)] : []));
    scroller.scrollTop = scrollTop;
    if (focused) {
      this.#body.querySelector<HTMLElement>(`[data-key="${focused}"]`)?.focus();
    }
  }

  #pager(numPages: number): HTMLElement {
    const button = (key: string, text: string, change: number) => {
      const target = this.#page + change;
      const made = element(
        'button',
        { type: 'button', 'data-key': key, disabled: target < 0 || target >= numPages },
        [text],
      );
      made.addEventListener('click', () => {
        this.#page = target;
        this.update();
      });
      return made;
    };
    return element('nav', { class: 'pager', 'aria-label': `Pages of ${this.#title}` }, [
      button('newer', 'Newer', -1),
      element('span', {}, [`${this.#page + 1} of ${numPages}`]),
      button('older', 'Older', 1),
    ]);
  }
}

/** A table that can be scrolled, by keyboard too. */
export function tableOf(
  title: string,
  columns: readonly string[],
  body: HTMLElement,
  label = title,
): HTMLElement {
  const heads = columns.map((name) => element('th', { scope: 'col' }, [name]));
  const table = element('table', {}, [
    element('caption', { class: 'sr' }, [title]),
    element('thead', {}, [element('tr', {}, heads)]),
    body,
  ]);
  return element(
    'div',
    { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': label, 'data-key': 'rows' },
    [table],
  );
}

export function tableRow([first, ...cells]: readonly Child[]): HTMLElement {
  return element('tr', {}, [
    element('th', { scope: 'row' }, first === undefined ? [] : [first]),
    ...cells.map((cell) => element('td', {}, [cell])),
  ]);
}
