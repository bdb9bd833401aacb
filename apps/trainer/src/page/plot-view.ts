// One plot with its legend, its values under the cursor, its table, and what can be done with it.
// Mouse: move, drag to zoom, double click to see everything. Keyboard: arrows move, plus and minus
// zoom, 0 shows everything, L is the logarithmic axis, A all values and F the full size.

import uPlot from 'uplot';
import { formatCount } from '../format.js';
import { card, dataElement, element } from './look/element.js';
import { type Palette, readPalette } from './look/palette.js';
import type { Chart } from './plot/charts.js';
import { drawOptions } from './plot/draw-options.js';
import { csvOf, download, fileName, pictureOf } from './plot/export.js';
import { answerKey } from './plot/keyboard.js';
import { type Drawn, drawnOf, type Layer, layersOf, lookOf, valueAt } from './plot/layers.js';
import { Legend } from './plot/legend.js';
import { PlotTools } from './plot/tools.js';
import { placeText, type StepAxis, stepAxis } from './plot/x-axis.js';
import type { RunModel } from './run/run-model.js';
import { type TableContent, TableView } from './table-view.js';

export { type StepAxis, stepAxis };

export interface PlotSettings {
  readonly runs: readonly RunModel[];
  /** Whether a run is shown. */
  readonly isShown: (run: number) => boolean;
  /** The number of steps that a mean is taken over; 1: no mean. */
  readonly smoothing: () => number;
}

export class PlotView {
  readonly root: HTMLElement;
  readonly #chart: Chart;
  readonly #settings: PlotSettings;
  readonly #host: HTMLElement;
  readonly #legend = new Legend((entry) => this.#toggle(entry));
  readonly #readout = element('output', { class: 'readout' });
  readonly #outside = element('p', { class: 'outside' });
  readonly #tools: PlotTools;
  readonly #table: TableView;
  readonly #observer: ResizeObserver;
  readonly #hidden = new Set<string>();
  #plot: uPlot | undefined;
  #drawn: readonly Drawn[] = [];
  #layers: readonly Layer[] = [];
  #axis: StepAxis = { kind: 'step', xs: [], lines: [] };

  constructor(chart: Chart, settings: PlotSettings) {
    this.#chart = chart;
    this.#settings = settings;
    this.#host = element('div', {
      class: 'plot',
      tabindex: 0,
      role: 'group',
      'aria-label': `${chart.title}. Arrows move along, plus and minus zoom, 0 shows all, L is the logarithmic axis, A all values, F full size.`,
    });
    this.#table = new TableView(`${chart.title} by step`, () =>
      tableOfPlot(this.#chart, this.#axis, this.#drawn),
    );
    this.#tools = new PlotTools({
      isStacked: this.#isStacked,
      isLog: chart.isLog === true,
      onChange: () => this.update(this.#axis, { isNew: true }),
      onTable: () => this.#saveTable(),
      onPicture: () => this.#savePicture(),
    });
    const note = chart.note === undefined ? [] : [element('p', { class: 'note' }, [chart.note])];
    this.root = card(chart.id, chart.title, {
      beside: [element('span', { class: 'unit' }, [chart.unit]), this.#readout],
      below: [
        this.#legend.root,
        element('div', { class: 'drawing' }, [this.#host, this.#outside]),
        ...note,
        element('div', { class: 'foot' }, [this.#table.root, this.#tools.root]),
      ],
    });
    this.#tools.open(this.root);
    this.#host.addEventListener('keydown', (event) => this.#onKey(event));
    this.#observer = new ResizeObserver(() => this.#resize());
    this.#observer.observe(this.#host);
  }

  /**
   * Draws what is there now.
   * @param isNew whether series or colors may differ from before
   */
  update(axis: StepAxis, { isNew }: { readonly isNew: boolean }): void {
    const { runs, isShown } = this.#settings;
    if (axis.kind !== this.#axis.kind) {
      // The part that is zoomed to is none of the new axis.
      this.#plot?.destroy();
      this.#plot = undefined;
    }
    this.#axis = axis;
    this.#drawn = drawnOf(this.#chart, runs, { axis, isShown });
    const isSeen = (value: number | null | undefined) =>
      value != null && !(this.#chart.isOfSeveralRanks && value === 0);
    this.root.hidden = !this.#drawn.some(({ values }) => values.some(isSeen));
    if (this.root.hidden) {
      return;
    }
    this.#layers = layersOf(this.#drawn, {
      isShown: ({ entry }) => !this.#hidden.has(entry),
      smoothing: this.#smoothing,
      isStacked: this.#isStacked,
      isLog: this.#tools.isLog,
      isWhole: this.#tools.isWhole,
    });
    const data = [axis.xs, ...this.#layers.map(({ values }) => values)] as uPlot.AlignedData;
    if (this.#plot === undefined || isNew || this.#plot.series.length !== data.length) {
      this.#draw(data);
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

  /** Leaves the page. */
  dispose(): void {
    this.#tools.close();
    this.#observer.disconnect();
    this.#plot?.destroy();
  }

  get #isStacked(): boolean {
    return this.#chart.isStacked === true && this.#settings.runs.length === 1;
  }

  get #smoothing(): number {
    return this.#chart.isNoisy ? this.#settings.smoothing() : 1;
  }

  /** Makes the plot anew; the part that is zoomed to stays. */
  #draw(data: uPlot.AlignedData): void {
    const { runs } = this.#settings;
    const palette = readPalette();
    const look = (drawn: Drawn) => lookOf(drawn, palette, runs.length);
    const zoomed = this.#plot && this.#isZoomed ? this.#plot.scales.x! : undefined;
    this.#plot?.destroy();
    const options = drawOptions({
      chart: this.#chart,
      kind: this.#axis.kind,
      layers: this.#layers,
      looks: this.#layers.map(({ drawn }) => look(drawn)),
      palette,
      size: this.#size,
      isStacked: this.#isStacked,
      isLog: this.#tools.isLog,
      isWhole: this.#tools.isWhole,
      onCursor: () => this.#showValues(),
      onOutside: (count) => this.#showOutside(count),
    });
    this.#plot = new uPlot(options, data, this.#host);
    if (zoomed?.min != null && zoomed.max != null) {
      this.#plot.setScale('x', { min: zoomed.min, max: zoomed.max });
    }
    this.#legend.update(
      this.#drawn,
      this.#drawn.map(look),
      ({ entry }) => !this.#hidden.has(entry),
    );
  }

  /** Shows the values at the cursor, or the last ones. An evaluation holds until the next one. */
  #showValues(): void {
    const { xs, kind } = this.#axis;
    const at = this.#plot?.cursor.idx;
    const isAt = at != null && xs[at] !== undefined;
    const mean = this.#smoothing > 1 ? [`mean over ${this.#smoothing} steps`] : [];
    const place = isAt ? [placeText(kind, xs[at]!)] : [];
    this.#readout.textContent = [...place, ...mean].join(' \u00b7 ');
    const values = this.#drawn.map((drawn) => {
      const own = this.#layers.find((layer) => layer.drawn === drawn && layer.kind !== 'faint');
      const column = own?.own ?? drawn.values;
      if (!isAt) {
        return valueAt(column, xs.length - 1);
      }
      return drawn.series.isSparse ? valueAt(column, at) : (column[at] ?? undefined);
    });
    this.#legend.showValues(values, this.#chart.format);
  }

  #showOutside(count: number): void {
    this.#outside.hidden = count === 0;
    this.#outside.title = 'Values beside the range count as its edge in means.';
    this.#outside.textContent = `${formatCount(count)} ${count === 1 ? 'value' : 'values'} outside`;
  }

  #toggle(entry: string): void {
    if (!this.#hidden.delete(entry)) {
      this.#hidden.add(entry);
    }
    this.update(this.#axis, { isNew: true });
  }

  get #names(): string[] {
    const { runs } = this.#settings;
    return [runs.length === 1 ? runs[0]!.name : `${runs.length} runs`, this.#chart.id];
  }

  #saveTable(): void {
    const text = csvOf(this.#axis, this.#drawn);
    download(fileName(this.#names, 'csv'), new Blob([text], { type: 'text/csv' }));
  }

  #savePicture(): void {
    const palette = readPalette();
    const { title, unit } = this.#chart;
    const picture = pictureOf({
      canvas: this.#plot!.ctx.canvas,
      title,
      unit,
      entries: this.#drawn
        .filter(({ entry }) => !this.#hidden.has(entry))
        .map((drawn) => ({
          name: drawn.name,
          look: lookOf(drawn, palette, this.#settings.runs.length),
        })),
      colors: colorsOf(palette),
    });
    picture.toBlob((blob) => blob && download(fileName(this.#names, 'png'), blob), 'image/png');
  }

  get #size() {
    const { clientWidth: width, clientHeight: height } = this.#host;
    return { width: Math.max(160, width), height: Math.max(120, height) };
  }

  #resize(): void {
    const { width, height } = this.#size;
    if (this.#plot !== undefined && (this.#plot.width !== width || this.#plot.height !== height)) {
      this.#plot.setSize({ width, height });
    }
  }

  get #isZoomed(): boolean {
    const { min, max } = this.#plot!.scales.x!;
    const [first, last] = [this.#plot!.data[0]!.at(0), this.#plot!.data[0]!.at(-1)];
    return min != null && max != null && (min > first! || max < last!);
  }

  #onKey(event: KeyboardEvent): void {
    if (this.#plot === undefined || event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    if (this.#tools.answer(event.key) || answerKey(this.#plot, this.#axis.xs, event.key)) {
      event.preventDefault();
    }
  }
}

function colorsOf(palette: Palette) {
  return {
    back: palette.color('card'),
    text: palette.color('text'),
    muted: palette.color('muted'),
  };
}

/** The values as they are, by place. */
function tableOfPlot(
  { format }: Chart,
  { xs, kind }: StepAxis,
  drawn: readonly Drawn[],
): TableContent {
  const present = [...xs.keys()].filter((i) => drawn.some(({ values }) => values[i] != null));
  return {
    columns: [
      { step: 'Step', tokens: 'Tokens', time: 'Time' }[kind],
      ...drawn.map(({ name }) => name),
    ],
    numRows: present.length,
    row: (index) => {
      const i = present[present.length - 1 - index]!;
      return [
        kind === 'step' ? String(xs[i]) : placeText(kind, xs[i]!),
        ...drawn.map(({ values }) =>
          dataElement(values[i], values[i] == null ? '' : format(values[i])),
        ),
      ];
    },
  };
}
