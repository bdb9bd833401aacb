// A row of small lines for a phone, where the plots are far below: loss, validation, rate and
// speed. A click on one goes to its plot.

import { formatCount } from '../format.js';
import type { StepLine } from '../output/run-records.js';
import { element, svg } from './look/element.js';
import { type Column, valueAt } from './plot/layers.js';
import { rangeOf } from './plot/scale.js';
import { ownSmoothing, smoothed } from './plot/smoothing.js';
import type { RunModel } from './run/run-model.js';

interface Spark {
  readonly name: string;
  /** The plot that shows more. */
  readonly id: string;
  readonly isNoisy?: boolean;
  value(line: StepLine): number | null | undefined;
  format(value: number): string;
}

const SPARKS: readonly Spark[] = [
  {
    name: 'Loss',
    id: 'loss',
    isNoisy: true,
    value: ({ loss }) => loss,
    format: (value) => value.toFixed(3),
  },
  {
    name: 'Validation',
    id: 'loss',
    value: ({ validLoss }) => validLoss,
    format: (value) => value.toFixed(3),
  },
  { name: 'Rate', id: 'rate', value: ({ lr }) => lr, format: (value) => value.toExponential(1) },
  {
    name: 'Tokens/s',
    id: 'speed',
    isNoisy: true,
    value: ({ tokensPerSecond }) => tokensPerSecond,
    format: formatCount,
  },
];
const SIZE = { width: 80, height: 28 };
const EDGE = 2;
/** A small line has room for so many places, each with its least and its greatest value. */
const NUM_PLACES = 60;

export class Sparklines {
  readonly root = element('div', { class: 'sparks' });
  readonly #runs: readonly RunModel[];
  readonly #parts: readonly { readonly button: HTMLElement; readonly spark: Spark }[];

  constructor(runs: readonly RunModel[]) {
    this.#runs = runs;
    this.#parts = SPARKS.map((spark) => ({ spark, button: this.#button(spark) }));
    this.root.append(...this.#parts.map(({ button }) => button));
  }

  /** @param isShown whether a run is shown */
  update(isShown: (run: number) => boolean): void {
    const shown = [...this.#runs.keys()].filter(isShown);
    for (const { spark, button } of this.#parts) {
      const columns = shown.map((run) => columnOf(this.#runs[run]!.lines, spark));
      const values = columns.map((column) => valueAt(column, column.length - 1));
      const [value] = values;
      button.hidden = values.every((last) => last === undefined);
      const text = value === undefined || shown.length > 1 ? '' : spark.format(value);
      button.replaceChildren(
        element('span', { class: 'spark-name' }, [spark.name]),
        pictureOf(shown, columns),
        element('b', {}, [text]),
      );
    }
  }

  #button({ id, name }: Spark): HTMLElement {
    const button = element('button', { type: 'button', 'aria-label': `${name}: to its plot` });
    button.addEventListener('click', () => {
      document.getElementById(id)?.querySelector<HTMLElement>('.plot')?.focus();
    });
    return button;
  }
}

function columnOf(lines: readonly StepLine[], { value, isNoisy }: Spark): Column {
  const values = lines.map((line) => value(line) ?? null);
  const steps = lines.map(({ step }) => step);
  const width = isNoisy ? ownSmoothing(steps.at(-1) ?? 0) : 1;
  return thinned(width === 1 ? values : smoothed(values, steps, width), NUM_PLACES);
}

/**
 * At most two values a place, the least and the greatest in their order, so that no spike is lost.
 */
export function thinned(values: Column, numPlaces: number): Column {
  const all = values.filter((value) => value != null);
  if (all.length <= 2 * numPlaces) {
    return all;
  }
  return Array.from({ length: numPlaces }, (_, place) => {
    const from = Math.floor((place * all.length) / numPlaces);
    const to = Math.floor(((place + 1) * all.length) / numPlaces);
    let [low, high] = [from, from];
    for (let i = from; i < to; i++) {
      low = all[i]! < all[low]! ? i : low;
      high = all[i]! > all[high]! ? i : high;
    }
    return low < high ? [all[low]!, all[high]!] : [all[high]!, all[low]!];
  }).flat();
}

function pictureOf(shown: readonly number[], columns: readonly Column[]): SVGElement {
  const { width, height } = SIZE;
  const longest = Math.max(1, ...columns.map(({ length }) => length));
  const range = rangeOf(columns, { from: 0, to: longest - 1 }) ?? { low: 0, high: 1 };
  const y = (value: number) => {
    const share = (value - range.low) / (range.high - range.low);
    return EDGE + (height - 2 * EDGE) * (1 - Math.min(1, Math.max(0, share)));
  };
  const lines = columns.map((column, i) => {
    const places = column.map((value, at) => {
      const x = EDGE + ((width - 2 * EDGE) * at) / Math.max(1, column.length - 1);
      return `${x.toFixed(1)},${y(value!).toFixed(1)}`;
    });
    const line = svg('polyline', { points: places.join(' ') });
    line.style.stroke = `var(--run-${shown[i]!})`;
    return line;
  });
  return svg('svg', { viewBox: `0 0 ${width} ${height}`, 'aria-hidden': 'true' }, lines);
}
