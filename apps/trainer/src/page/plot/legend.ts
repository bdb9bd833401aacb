// The legend of a plot: a button a series, which hides it and shows it again, with the series'
// value beside it.

import { dataElement, element, svg } from '../look/element.js';
import { NUM_RUN_COLORS, runDash } from '../look/palette.js';
import type { Drawn, Look } from './layers.js';

const MARK = { width: 26, height: 10 };

export class Legend {
  readonly root = element('ul', { class: 'legend' });
  readonly #onToggle: (name: string) => void;
  #looks = '';
  #buttons: readonly HTMLButtonElement[] = [];
  #values: readonly HTMLElement[] = [];

  constructor(onToggle: (name: string) => void) {
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
      this.#values = drawn.map(() => element('span', { class: 'value' }));
      this.#buttons = drawn.map((entry, i) => this.#button(entry, looks[i]!, this.#values[i]!));
      this.root.replaceChildren(...this.#buttons.map((button) => element('li', {}, [button])));
    }
    for (const [i, button] of this.#buttons.entries()) {
      button.setAttribute('aria-pressed', String(isShown(drawn[i]!)));
    }
  }

  showValues(values: readonly (number | undefined)[], format: (value: number) => string): void {
    for (const [i, value] of values.entries()) {
      const text = value === undefined ? '' : format(value);
      this.#values[i]?.replaceChildren(dataElement(value, text));
    }
  }

  #button({ name, series }: Drawn, look: Look, value: HTMLElement): HTMLButtonElement {
    const mark = lineMark(look, { hasDots: series.hasDots === true });
    const label = element('span', { class: 'name' }, [name]);
    const button = element('button', { type: 'button', 'aria-pressed': 'true' }, [
      mark,
      label,
      value,
    ]);
    button.addEventListener('click', () => this.#onToggle(name));
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
