// The legend of a plot: a button a series, or a run where there are several, which hides it and
// shows it again, with the values beside it.

import { dataElement, element, svg } from '../look/element.js';
import { NUM_RUN_COLORS, runDash } from '../look/palette.js';
import type { Drawn, Look } from './layers.js';

/** With more runs than these each has one value, for two would take a line of their own. */
const MOST_WITH_ALL = 4;
const MARK = { width: 26, height: 10 };

export class Legend {
  readonly root = element('ul', { class: 'legend' });
  readonly #onToggle: (entry: string) => void;
  #looks = '';
  #buttons: readonly HTMLButtonElement[] = [];
  #values: readonly HTMLElement[] = [];
  /** The drawn series of each button. */
  #entries: readonly (readonly number[])[] = [];

  constructor(onToggle: (entry: string) => void) {
    this.#onToggle = onToggle;
  }

  /** Shows these entries. Equal ones stay the same elements, so that none loses the focus. */
  update(
    drawn: readonly Drawn[],
    looks: readonly Look[],
    isShown: (drawn: Drawn) => boolean,
  ): void {
    const now = JSON.stringify(drawn.map(({ name }, i) => [name, looks[i]]));
    if (now !== this.#looks) {
      this.#looks = now;
      const names = [...new Set(drawn.map(({ entry }) => entry))];
      this.#entries = names.map((name) =>
        [...drawn.keys()].filter((i) => drawn[i]!.entry === name),
      );
      this.#values = names.map(() => element('span', { class: 'value' }));
      this.#buttons = this.#entries.map(([i], at) =>
        this.#button(drawn[i!]!, looks[i!]!, this.#values[at]!),
      );
      const of = [...new Set(drawn.map(({ series }) => series.name))];
      const isGrouped = names.length < drawn.length;
      const told = names.length > MOST_WITH_ALL ? of.slice(0, 1) : of;
      const order = isGrouped ? [element('li', { class: 'order' }, [told.join(' / ')])] : [];
      const items = this.#buttons.map((button) => element('li', {}, [button]));
      this.root.replaceChildren(...items, ...order);
    }
    for (const [at, button] of this.#buttons.entries()) {
      button.setAttribute('aria-pressed', String(isShown(drawn[this.#entries[at]![0]!]!)));
    }
  }

  showValues(values: readonly (number | undefined)[], format: (value: number) => string): void {
    const isFew = this.#entries.length <= MOST_WITH_ALL;
    for (const [at, entries] of this.#entries.entries()) {
      const told = isFew ? entries : entries.slice(0, 1);
      const texts = told.flatMap((i, place) => {
        const value = values[i];
        const text = dataElement(value, value === undefined ? '' : format(value));
        return place === 0 ? [text] : [' / ', text];
      });
      this.#values[at]!.replaceChildren(...texts);
    }
  }

  #button({ entry, series }: Drawn, look: Look, value: HTMLElement): HTMLButtonElement {
    const mark = lineMark(look, { hasDots: series.hasDots === true });
    const label = element('span', { class: 'name' }, [entry]);
    const button = element('button', { type: 'button', 'aria-pressed': 'true' }, [
      mark,
      label,
      value,
    ]);
    button.addEventListener('click', () => this.#onToggle(entry));
    return button;
  }
}

/** A piece of a line as the plot draws it; with a dot where each value has one. */
function lineMark(
  { color, dash }: Look,
  { hasDots = false }: { readonly hasDots?: boolean } = {},
): SVGElement {
  const { width, height } = MARK;
  const line = svg('line', {
    x1: 0,
    x2: width,
    y1: height / 2,
    y2: height / 2,
    'stroke-width': 2.5,
  });
  if (dash.length > 0) {
    line.setAttribute('stroke-dasharray', dash.join(' '));
  }
  line.style.stroke = color;
  const dots = hasDots ? [svg('circle', { cx: width / 2, cy: height / 2, r: 3.5 })] : [];
  for (const dot of dots) {
    dot.style.fill = color;
  }
  return svg('svg', { width, height, class: 'mark', 'aria-hidden': 'true' }, [line, ...dots]);
}

/** A piece of the line of run `index`. */
export function runMark(index: number): SVGElement {
  return lineMark({ color: `var(--run-${index % NUM_RUN_COLORS})`, dash: runDash(index) });
}
