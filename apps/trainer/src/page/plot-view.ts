// One plot over the steps with its legend, its values under the cursor and its table. Mouse: move,
// drag to zoom, double click to see everything. Keyboard: arrows move, plus and minus zoom, 0 shows
// everything.

import uPlot from 'uplot';
import type { StepLine } from '../output/run-records.js';
import { type Chart, type ChartSeries, smoothed } from './charts.js';
import { card, dataElement, element, swatch } from './element.js';
import { type Palette, readPalette } from './palette.js';
import { prefixOf, type RunModel } from './run-model.js';
import { TableView } from './table-view.js';

/** The steps that are shown, in order, with each run's line of the step. */
export interface StepAxis {
  readonly steps: readonly number[];
  /** The lines by run, then in the order of `steps`. */
  readonly lines: readonly (readonly (StepLine | undefined)[])[];
}

export interface PlotSettings {
  readonly runs: readonly RunModel[];
  /** Whether a run is shown. */
  readonly isShown: (run: number) => boolean;
  /** The number of steps that a mean is taken over; 1: no mean. */
  readonly smoothing: () => number;
}

interface Drawn {
  readonly run: number;
  readonly series: ChartSeries;
  readonly name: string;
  readonly values: (number | null)[];
}

const HEIGHT = 220;
const SYNC = 'steps';
/** A sparse series of more points than this is drawn as a line without dots. */
const MOST_POINTS = 60;
/** The number of characters of #rrggbb, which an alpha value may follow. */
const HEX = 7;
/** Binary sizes, so that ticks are round in the units that are written. */
const BYTE_STEPS = Array.from({ length: 50 }, (_, i) => 2 ** i);

export class PlotView {
  readonly root: HTMLElement;
  readonly #chart: Chart;
  readonly #settings: PlotSettings;
  readonly #host: HTMLElement;
  readonly #legend: HTMLElement;
  readonly #readout: HTMLOutputElement;
  readonly #table: TableView;
  #plot: uPlot | undefined;
  #drawn: readonly Drawn[] = [];
  #axis: StepAxis = { steps: [], lines: [] };
  #values: HTMLElement[] = [];

  constructor(chart: Chart, settings: PlotSettings) {
    this.#chart = chart;
    this.#settings = settings;
    this.#host = element('div', {
      class: 'plot',
      tabindex: 0,
      role: 'group',
      'aria-label': `${chart.title} over steps. Arrows move along the steps, plus and minus zoom, 0 shows all.`,
    });
    this.#legend = element('ul', { class: 'legend' });
    this.#readout = element('output', { class: 'readout' });
    this.#table = new TableView(`${chart.title} by step`, () => this.#content());
    const note = chart.note === undefined ? [] : [element('p', { class: 'note' }, [chart.note])];
    this.root = card(chart.id, chart.title, {
      beside: [element('span', { class: 'unit' }, [chart.unit]), this.#readout],
      below: [this.#legend, this.#host, ...note, this.#table.root],
    });
    this.#host.addEventListener('keydown', (event) => this.#onKey(event));
    new ResizeObserver(() => this.#resize()).observe(this.#host);
  }

  /**
   * Draws what is there now.
   * @param isNew whether series or colors may differ from before
   */
  update(axis: StepAxis, { isNew }: { readonly isNew: boolean }): void {
    this.#axis = axis;
    this.#drawn = this.#collect(axis);
    const data = this.#data();
    this.root.hidden = !this.#drawn.some(({ values }) => values.some((value) => value !== null));
    if (this.root.hidden) {
      return;
    }
    if (this.#plot === undefined || isNew || this.#plot.series.length !== data.length) {
      this.#plot?.destroy();
      this.#plot = new uPlot(this.#options(readPalette()), data, this.#host);
      this.#drawLegend();
    } else {
      const isZoomed = this.#isZoomed;
      this.#plot.setData(data, !isZoomed);
      if (isZoomed) {
        this.#plot.redraw();
      }
    }
    this.#showValues();
    this.#table.update();
  }

  #collect({ lines }: StepAxis): Drawn[] {
    const { runs, isShown } = this.#settings;
    const shown = [...runs.keys()].filter(isShown);
    return shown.flatMap((run) =>
      this.#chart.series.flatMap((series) => {
        const values = lines[run]!.map((line) => (line === undefined ? null : series.value(line)));
        const isMissing = values.every((value) => value === null);
        const name = `${prefixOf(runs[run]!, runs)}${series.name}`;
        return isMissing && series.isSparse ? [] : [{ run, series, name, values }];
      }),
    );
  }

  /**
   * The steps, then what is drawn for each series. A noisy one has a mean over some steps, with the
   * values themselves behind it.
   */
  #data(): uPlot.AlignedData {
    const { steps } = this.#axis;
    const columns = this.#layers().map(({ drawn, isFaint, mean }, i, layers) => {
      if (this.#chart.isStacked) {
        // The areas of each run begin where those of its later series end.
        const below = layers.slice(i).filter((layer) => layer.drawn.run === drawn.run);
        return drawn.values.map((value, at) =>
          value === null
            ? null
            : below.reduce((sum, layer) => sum + (layer.drawn.values[at] ?? 0), 0),
        );
      }
      return isFaint || mean === 1 ? drawn.values : smoothed(drawn.values, mean);
    });
    return [steps as number[], ...columns];
  }

  #layers(): { readonly drawn: Drawn; readonly isFaint: boolean; readonly mean: number }[] {
    const mean = this.#chart.isNoisy ? this.#settings.smoothing() : 1;
    return this.#drawn.flatMap((drawn) => {
      const own = drawn.series.isSparse ? 1 : mean;
      const line = { drawn, isFaint: false, mean: own };
      return own === 1 ? [line] : [{ ...line, isFaint: true }, line];
    });
  }

  #options(palette: Palette): uPlot.Options {
    const { formatTick = this.#chart.format, isStacked, isBytes } = this.#chart;
    const axis = {
      stroke: palette.color('muted'),
      grid: { stroke: palette.color('grid'), width: 1 },
      ticks: { show: false },
      font: '12px system-ui, sans-serif',
    };
    return {
      width: this.#width,
      height: HEIGHT,
      legend: { show: false },
      padding: [8, 18, 0, 0],
      cursor: {
        sync: { key: SYNC },
        y: false,
        points: { size: 7 },
        drag: { x: true, y: false },
      },
      scales: {
        x: { time: false },
        y: isStacked || isBytes ? { range: (_, __, max) => [0, max > 0 ? max * 1.1 : 1] } : {},
      },
      axes: [
        {
          ...axis,
          size: 30,
          incrs: [1, 2, 5].flatMap((digit) => POWERS.map((power) => digit * power)).sort(byOrder),
        },
        {
          ...axis,
          size: 64,
          values: (_, splits) => splits.map((value) => formatTick(value)),
          ...(isBytes ? { incrs: BYTE_STEPS } : {}),
        },
      ],
      series: [
        {},
        ...this.#layers().map(({ drawn, isFaint }) => this.#line(palette, drawn, isFaint)),
      ],
      hooks: { setCursor: [() => this.#showValues()] },
    };
  }

  #line(palette: Palette, { run, series, name }: Drawn, isFaint: boolean): uPlot.Series {
    const count = () =>
      this.#drawn
        .find((line) => line.name === name)!
        .values.reduce<number>((sum, value) => sum + (value === null ? 0 : 1), 0);
    const stroke = this.#colorOf(palette, run, series);
    return {
      stroke: isFaint ? `${stroke}55` : stroke,
      width: isFaint ? 1 : 1.75,
      spanGaps: series.isSparse === true,
      points: {
        show: () => count() <= (series.isSparse ? MOST_POINTS : 1),
        size: 6,
        fill: stroke,
      },
      ...(series.isSparse ? { dash: [6, 4] } : {}),
      ...(this.#chart.isStacked ? { fill: `${stroke.slice(0, HEX)}66`, width: 1 } : {}),
    };
  }

  #colorOf(palette: Palette, run: number, { color }: ChartSeries): string {
    if (color !== undefined && this.#settings.runs.length === 1) {
      return palette.color(color);
    }
    return `${palette.run(run)}${color === 'hidden' ? '66' : ''}`;
  }

  #drawLegend(): void {
    const palette = readPalette();
    this.#values = [];
    this.#legend.replaceChildren(
      ...this.#drawn.map(({ run, series, name }) => {
        const color = this.#colorOf(palette, run, series);
        const mark = swatch(color, series.isSparse ? 'swatch dashed' : 'swatch');
        const value = element('span', { class: 'value' });
        this.#values.push(value);
        return element('li', {}, [mark, element('span', {}, [name]), value]);
      }),
    );
  }

  /** Shows the values of the step under the cursor, or of the last step that has one. */
  #showValues(): void {
    const { steps } = this.#axis;
    const at = this.#plot?.cursor.idx;
    this.#readout.textContent = at == null || steps[at] === undefined ? '' : `step ${steps[at]}`;
    for (const [i, { values }] of this.#drawn.entries()) {
      const value = at == null ? values.findLast((earlier) => earlier !== null) : values[at];
      const text = value == null ? '\u2013' : this.#chart.format(value);
      this.#values[i]?.replaceChildren(dataElement(value, text));
    }
  }

  #content() {
    const { steps } = this.#axis;
    const present = [...steps.keys()].filter((i) =>
      this.#drawn.some(({ values }) => values[i] !== null),
    );
    return {
      columns: ['Step', ...this.#drawn.map(({ name }) => name)],
      numRows: present.length,
      row: (index: number) => {
        const i = present[present.length - 1 - index]!;
        return [
          String(steps[i]),
          ...this.#drawn.map(({ values }) =>
            dataElement(values[i], values[i] == null ? '' : this.#chart.format(values[i])),
          ),
        ];
      },
    };
  }

  get #width(): number {
    return Math.max(160, this.#host.clientWidth);
  }

  #resize(): void {
    if (this.#plot !== undefined && this.#plot.width !== this.#width) {
      this.#plot.setSize({ width: this.#width, height: HEIGHT });
    }
  }

  get #isZoomed(): boolean {
    const { min, max } = this.#plot!.scales.x!;
    const [first, last] = [this.#plot!.data[0]!.at(0), this.#plot!.data[0]!.at(-1)];
    return min != null && max != null && (min > first! || max < last!);
  }

  #onKey(event: KeyboardEvent): void {
    const plot = this.#plot;
    const { steps } = this.#axis;
    if (plot === undefined || steps.length === 0 || event.ctrlKey || event.metaKey) {
      return;
    }
    const at = plot.cursor.idx ?? steps.length - 1;
    const leap = Math.max(1, Math.round(steps.length / 10));
    const targets: Readonly<Record<string, number>> = {
      ArrowLeft: at - 1,
      ArrowRight: at + 1,
      PageDown: at - leap,
      PageUp: at + leap,
      Home: 0,
      End: steps.length - 1,
    };
    const target = targets[event.key];
    if (target !== undefined) {
      this.#moveTo(plot, Math.min(steps.length - 1, Math.max(0, target)));
    } else if (event.key === '0' || event.key === 'Escape') {
      plot.setScale('x', { min: steps[0]!, max: steps.at(-1)! });
    } else if (event.key === '+' || event.key === '=' || event.key === '-') {
      zoom(plot, { around: steps[at]!, factor: event.key === '-' ? 2 : 0.5, steps });
    } else {
      return;
    }
    event.preventDefault();
  }

  #moveTo(plot: uPlot, index: number): void {
    const step = this.#axis.steps[index]!;
    const { min, max } = plot.scales.x!;
    if (min == null || max == null || step < min || step > max) {
      plot.setScale('x', { min: this.#axis.steps[0]!, max: this.#axis.steps.at(-1)! });
    }
    plot.setCursor({ left: plot.valToPos(step, 'x'), top: HEIGHT / 2 });
  }
}

const POWERS = Array.from({ length: 9 }, (_, i) => 10 ** i);
const byOrder = (a: number, b: number) => a - b;

function zoom(
  plot: uPlot,
  { around, factor, steps }: { around: number; factor: number; steps: readonly number[] },
): void {
  const { min, max } = plot.scales.x!;
  const half = (((max ?? 1) - (min ?? 0)) * factor) / 2;
  if (half >= 0.5) {
    const low = Math.max(steps[0]!, around - half);
    plot.setScale('x', { min: low, max: Math.min(steps.at(-1)!, low + 2 * half) });
  }
}

/** The steps of all runs, each once and in order. */
export function stepAxis(runs: readonly RunModel[]): StepAxis {
  if (runs.length === 1) {
    const { lines } = runs[0]!;
    return { steps: lines.map(({ step }) => step), lines: [lines] };
  }
  const steps = [...new Set(runs.flatMap(({ lines }) => lines.map(({ step }) => step)))].sort(
    byOrder,
  );
  return {
    steps,
    lines: runs.map(({ lines }) => {
      const byStep = new Map(lines.map((line) => [line.step, line]));
      return steps.map((step) => byStep.get(step));
    }),
  };
}
