// Shows what each rank held in the phases of its last step: bars with the tags on top of each
// other, and a table.

import { formatBytes } from '../format.js';
import { card, dataElement, element, svg, swatch } from './look/element.js';
import { prefixOf, type RankModel, type RunModel } from './run/run-model.js';
import { TableView } from './table-view.js';

/** The tags from the bottom up: memory that stays lies below memory that comes and goes. */
const TAGS = ['parameter', 'optimizer', 'gradient', 'gathered', 'activation', 'staging'] as const;
type Tag = (typeof TAGS)[number];
type Bytes = Readonly<Record<Tag | 'total', number>>;

const WIDTH = 240;
const HEIGHT = 150;
const MARGIN = { top: 16, bottom: 20, left: 4, right: 4 };
const GAP = 14;
/** With more ranks than this only the table is shown. */
const MOST_BARS = 8;

export class MemoryView {
  readonly root: HTMLElement;
  readonly #runs: readonly RunModel[];
  readonly #bars = element('div', { class: 'ranks-memory' });
  readonly #rest = element('p', { class: 'note' });
  readonly #table: TableView;

  constructor(runs: readonly RunModel[]) {
    this.#runs = runs;
    this.#table = new TableView('Memory by rank and phase', () => this.#content());
    const legend = TAGS.map((tag) =>
      element('li', {}, [swatch(colorOf(tag)), element('span', {}, [tag])]),
    );
    this.root = card('memory', 'Memory over a step', {
      beside: [element('span', { class: 'unit' }, ['held on each device at the peak of a phase'])],
      below: [element('ul', { class: 'legend' }, legend), this.#bars, this.#rest, this.#table.root],
    });
  }

  update(): void {
    const ranks = this.#ranks();
    this.root.hidden = ranks.length === 0;
    const most = Math.max(
      1,
      ...ranks.flatMap(({ rank }) => phasesOf(rank).map(({ bytes }) => bytes.total)),
    );
    const shown = ranks.slice(0, MOST_BARS);
    this.#bars.replaceChildren(...shown.map(({ name, rank }) => figureOf(name, rank, most)));
    const left = ranks.length - shown.length;
    this.#rest.hidden = left === 0;
    this.#rest.textContent = `${left} more in the table.`;
    this.#table.update();
  }

  #ranks(): { readonly name: string; readonly rank: RankModel }[] {
    return this.#runs.flatMap((run) =>
      run.ranks
        .filter(({ status }) => status !== undefined)
        .map((rank) => ({ name: `${prefixOf(run, this.#runs)}rank ${rank.rank}`, rank })),
    );
  }

  #content() {
    const rows = this.#ranks().flatMap(({ name, rank }) =>
      phasesOf(rank).map(({ phase, bytes }) => ({ name, phase, bytes })),
    );
    return {
      columns: ['Rank', 'Phase', ...TAGS, 'total'],
      numRows: rows.length,
      row: (index: number) => {
        const { name, phase, bytes } = rows[index]!;
        const names = [...TAGS, 'total'] as const;
        const cells = names.map((tag) => dataElement(bytes[tag], formatBytes(bytes[tag])));
        return [name, phase, ...cells];
      },
    };
  }
}

function colorOf(tag: Tag): string {
  return `var(--tag-${tag})`;
}

function phasesOf({ status }: RankModel): readonly { phase: string; bytes: Bytes }[] {
  return status?.phases ?? [];
}

function figureOf(name: string, rank: RankModel, most: number): HTMLElement {
  const phases = phasesOf(rank);
  const peak = Math.max(...phases.map(({ bytes }) => bytes.total));
  const room = WIDTH - MARGIN.left - MARGIN.right;
  const width = (room - GAP * (phases.length - 1)) / Math.max(1, phases.length);
  const scale = (HEIGHT - MARGIN.top - MARGIN.bottom) / most;
  const bars = phases.flatMap(({ phase, bytes }, i) => {
    const x = MARGIN.left + i * (width + GAP);
    let y = HEIGHT - MARGIN.bottom;
    const parts = TAGS.filter((tag) => bytes[tag] > 0).map((tag) => {
      const height = bytes[tag] * scale;
      y -= height;
      const title = svg('title', {}, [`${phase}, ${tag}: ${formatBytes(bytes[tag])}`]);
      const bar = svg('rect', { x, y, width, height }, [title]);
      bar.style.setProperty('fill', colorOf(tag));
      return bar;
    });
    const middle = x + width / 2;
    return [
      ...parts,
      svg('text', { x: middle, y: y - 5, class: 'bar-value' }, [formatBytes(bytes.total)]),
      svg('text', { x: middle, y: HEIGHT - 5, class: 'bar-name' }, [phase]),
    ];
  });
  const base = HEIGHT - MARGIN.bottom;
  const line = svg('line', { x1: 0, x2: WIDTH, y1: base, y2: base, class: 'base' });
  const viewBox = `0 0 ${WIDTH} ${HEIGHT}`;
  const label = `${name} held at most ${formatBytes(peak)}; the table has all numbers`;
  return element('figure', {}, [
    element('figcaption', {}, [name, element('b', {}, [formatBytes(peak)])]),
    svg('svg', { viewBox, role: 'img', 'aria-label': label }, [...bars, line]),
  ]);
}
