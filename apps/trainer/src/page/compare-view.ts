// Several runs as one table: how each ended, its last numbers, and the settings in which they
// differ. A click on a column's name sorts by it, and a run's box draws or hides it.

import { formatBytes, formatCount, formatMs } from '../format.js';
import { spanText } from '../times.js';
import { type Child, dataElement, element } from './look/element.js';
import { runMark } from './plot/legend.js';
import { workSeconds } from './plot/x-axis.js';
import type { RunModel } from './run/run-model.js';
import { ordered } from './runs-rows.js';

interface Column {
  readonly name: string;
  cell(run: RunModel): Child;
  /** What the rows are sorted by; undefined comes last. */
  key(run: RunModel): number | string | undefined;
}

export class CompareView {
  readonly root: HTMLElement;
  readonly #runs: readonly RunModel[];
  readonly #head = element('tr');
  readonly #body = element('tbody');
  readonly #rows: readonly { readonly row: HTMLElement; readonly name: HTMLElement }[];
  #columns: readonly Column[] = [];
  #sorted: { readonly name: string; readonly isDescending: boolean } | undefined;

  /** @param onShow called where a run's box is changed */
  constructor(runs: readonly RunModel[], onShow: (run: number, isShown: boolean) => void) {
    this.#runs = runs;
    this.#rows = runs.map((run, i) => {
      const box = element('input', { type: 'checkbox', checked: true });
      box.addEventListener('change', () => onShow(i, box.checked));
      const label = element('label', {}, [box, runMark(i), run.name]);
      return { row: element('tr'), name: element('th', { scope: 'row' }, [label]) };
    });
    const table = element('table', {}, [
      element('caption', { class: 'sr' }, ['Runs']),
      element('thead', {}, [this.#head]),
      this.#body,
    ]);
    this.root = element('section', { class: 'card compare', 'aria-label': 'Runs' }, [
      element('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'All runs' }, [
        table,
      ]),
    ]);
  }

  update(): void {
    const columns = [...COLUMNS, ...differing(this.#runs)];
    if (columns.map(({ name }) => name).join('\n') !== this.#names) {
      this.#columns = columns;
      this.#head.replaceChildren(...columns.map((column) => this.#heading(column)));
    }
    this.#columns = columns;
    for (const [i, { row, name }] of this.#rows.entries()) {
      const cells = columns.slice(1).map(({ cell }) => element('td', {}, [cell(this.#runs[i]!)]));
      while (row.childElementCount > 1) {
        row.lastElementChild!.remove();
      }
      if (row.firstElementChild !== name) {
        row.append(name);
      }
      row.append(...cells);
    }
    this.#sort();
  }

  get #names(): string {
    return this.#columns.map(({ name }) => name).join('\n');
  }

  #heading({ name }: Column): HTMLElement {
    const button = element('button', { type: 'button' }, [name]);
    button.addEventListener('click', () => {
      const isDescending = this.#sorted?.name === name && !this.#sorted.isDescending;
      this.#sorted = { name, isDescending };
      this.#sort();
    });
    return element('th', { scope: 'col' }, [button]);
  }

  #sort(): void {
    const column = this.#columns.find(({ name }) => name === this.#sorted?.name);
    for (const [i, head] of [...this.#head.children].entries()) {
      const isSorted = this.#columns[i] === column;
      const way = this.#sorted?.isDescending ? 'descending' : 'ascending';
      head.setAttribute('aria-sort', isSorted ? way : 'none');
    }
    const all = [...this.#runs.keys()];
    const key = (i: number) => column?.key(this.#runs[i]!);
    const order = ordered(all, key, { isDescending: this.#sorted?.isDescending === true });
    const rows = order.map((i) => this.#rows[i]!.row);
    // An element that is moved loses the focus, so those in their places stay.
    if (rows.some((row, i) => this.#body.children[i] !== row)) {
      this.#body.replaceChildren(...rows);
    }
  }
}

function figure(
  name: string,
  value: (run: RunModel) => number | null | undefined,
  format: (value: number) => string,
): Column {
  const key = (run: RunModel) => value(run) ?? undefined;
  return { name, key, cell: (run) => dataElement(key(run), format(key(run) ?? 0)) };
}

const COLUMNS: readonly Column[] = [
  { name: 'Run', cell: ({ name }) => name, key: ({ name }) => name },
  {
    name: 'State',
    cell: ({ state, end }) => {
      const badge = element('span', { class: `badge ${state}` }, [state]);
      const why = end === undefined || end.end === 'done' ? '' : ` ${end.reason ?? ''}`;
      return element('span', { class: 'state' }, [badge, why]);
    },
    key: ({ state }) => state,
  },
  figure('Step', ({ last }) => last?.step, String),
  {
    name: 'Loss',
    cell: (run) => {
      const { divergedAt } = run;
      const loss = lastLoss(run);
      return divergedAt === undefined
        ? dataElement(loss, loss?.toFixed(4) ?? '')
        : element('span', { class: 'bad' }, [`diverged at ${divergedAt}`]);
    },
    key: (run) => (run.divergedAt === undefined ? lastLoss(run) : undefined),
  },
  figure('Validation', validation, (value) => value.toFixed(4)),
  figure('Tokens/s', ({ last }) => last?.tokensPerSecond, formatCount),
  figure('Step time', ({ last }) => last?.stepMs, formatMs),
  figure('Peak', ({ last }) => last?.peakBytes, formatBytes),
  figure(
    'At work',
    ({ lines, beginnings }) => workSeconds(lines, beginnings).at(-1),
    (seconds) => spanText(seconds * 1000),
  ),
];

function lastLoss({ lines }: RunModel): number | undefined {
  return lines.findLast(({ loss }) => loss !== null)?.loss ?? undefined;
}

function validation({ lines }: RunModel): number | undefined {
  return lines.findLast(({ validLoss }) => validLoss != null)?.validLoss ?? undefined;
}

/** The rows of the header whose values are not those of all runs. */
export function differing(runs: readonly RunModel[]): Column[] {
  const names = [...new Set(runs.flatMap(({ header }) => header.map(([name]) => name)))];
  const settingOf = (run: RunModel, name: string) =>
    run.header
      .filter(([other]) => other === name)
      .map(([, value]) => value)
      .join('; ');
  return names
    .filter((name) => new Set(runs.map((run) => settingOf(run, name))).size > 1)
    .map((name) => ({
      name: name === 'run' ? 'title' : name,
      cell: (run) => element('span', { class: 'setting' }, [settingOf(run, name)]),
      key: (run) => settingOf(run, name),
    }));
}
