// What the drawing library is told: axes, ranges, and how each layer looks.

import type uPlot from 'uplot';
import type { Palette } from '../look/palette.js';
import type { Chart } from './charts.js';
import type { Layer, Look } from './layers.js';
import { logTicks, numOutside, rangeOf } from './scale.js';
import { tickSteps, tickTexts, type XKind } from './x-axis.js';

export interface DrawOptions {
  readonly chart: Chart;
  readonly kind: XKind;
  readonly layers: readonly Layer[];
  readonly looks: readonly Look[];
  readonly palette: Palette;
  readonly size: { readonly width: number; readonly height: number };
  readonly isStacked: boolean;
  readonly isLog: boolean;
  /** Whether spikes are in the range, too. */
  readonly isWhole: boolean;
  readonly onCursor: () => void;
  /** Called with the number of values that are out of the range. */
  readonly onOutside: (count: number) => void;
}

const SYNC = 'steps';
/** More dots than this would be a line. */
const MOST_DOTS = 40;
const FAINT = '40';
const AREA = '66';
const ROOM = 0.05; // above all values, where the axis begins at zero
const WIDTHS = { faint: 1, line: 1.75, sparse: 2.25 } as const;
const CHARACTER_PX = 6.7; // of a tick at 12px, a little more than a digit is wide
const TICK_ROOM_PX = 14;
/** Binary sizes, so that ticks are round in the units that are written. */
const BYTE_STEPS = Array.from({ length: 50 }, (_, i) => 2 ** i);

export function drawOptions(options: DrawOptions): uPlot.Options {
  const { palette, kind, layers, looks, onCursor } = options;
  return {
    ...options.size,
    legend: { show: false },
    // Half of a tick's text is beside the last tick.
    padding: [10, 24, 0, 0],
    cursor: {
      sync: { key: SYNC },
      y: false,
      points: { size: 7 },
      drag: { x: true, y: false },
    },
    scales: { x: { time: false }, y: yScale(options) },
    axes: [
      {
        ...axisLook(palette),
        size: 30,
        incrs: [...tickSteps(kind)],
        values: (_, ticks) => tickTexts(kind, ticks),
      },
      yAxis(options),
    ],
    series: [{}, ...layers.map((layer, i) => lineOf(layer, looks[i]!, options.isStacked))],
    hooks: { setCursor: [onCursor] },
  };
}

function axisLook(palette: Palette) {
  return {
    stroke: palette.color('muted'),
    grid: { stroke: palette.color('grid'), width: 1 },
    ticks: { show: false },
    font: '12px system-ui, sans-serif',
  };
}

function yScale({ chart, layers, isLog, isWhole, onOutside }: DrawOptions): uPlot.Scale {
  // A value that has a mean before it is the same value, and a mean is none.
  const hasFaint = layers.some(({ kind }) => kind === 'faint');
  const counted = [...layers.keys()].filter((i) => !hasFaint || layers[i]!.kind !== 'line');
  return {
    distr: isLog ? 3 : 1,
    range: ({ data, series }) => {
      const [from, to] = series[0]!.idxs ?? [0, data[0].length - 1];
      const columns = data.slice(1) as (number | null | undefined)[][];
      const part = { from, to, isLog, isWhole };
      const found = rangeOf(columns, part);
      if (found === undefined) {
        onOutside(0);
        return isLog ? [1, 10] : [0, 1];
      }
      const low = chart.isFromZero && !isLog ? Math.min(0, found.low) : found.low;
      // A line that never changes must not lie on the edge.
      const high = low < found.low ? found.high + ROOM * (found.high - low) : found.high;
      const range = { low: Math.max(low, isLog ? Number.MIN_VALUE : low), high };
      const seen = counted.map((i) => columns[i]!);
      onOutside(numOutside(seen, range, part));
      return [range.low, range.high];
    },
  };
}

function yAxis({ chart, palette, isLog }: DrawOptions): uPlot.Axis {
  const { formatTick = chart.format, isBytes } = chart;
  return {
    ...axisLook(palette),
    // A text that is longer than the room for it would be cut off.
    size: (_, texts) =>
      TICK_ROOM_PX + CHARACTER_PX * Math.max(3, ...(texts ?? []).map((text) => text.length)),
    values: (_, ticks) => ticks.map((tick) => formatTick(tick)),
    ...(isLog
      ? { splits: (_, __, low, high) => logTicks({ low, high }), filter: (_, ticks) => ticks }
      : isBytes
        ? { incrs: BYTE_STEPS }
        : {}),
  };
}

function lineOf({ drawn, kind }: Layer, look: Look, isStacked: boolean): uPlot.Series {
  const { isSparse = false, hasDots = false } = drawn.series;
  const { color, dash } = look;
  return {
    stroke: kind === 'faint' ? `${color}${FAINT}` : color,
    width: isStacked ? 1 : WIDTHS[kind],
    spanGaps: isSparse,
    points: {
      show: true,
      size: 6,
      fill: color,
      filter: (plot, index) => dotsOf(plot.data[index]!, hasDots),
    },
    ...(dash.length > 0 && kind !== 'faint' ? { dash: [...dash] } : {}),
    ...(isStacked ? { fill: `${color}${AREA}` } : {}),
  };
}

/** The places with a dot: of some values that have dots, or of one that no line would show. */
function dotsOf(values: ArrayLike<number | null | undefined>, hasDots: boolean): number[] {
  const places: number[] = [];
  for (let i = 0; i < values.length && (hasDots || places.length < 2); i++) {
    if (values[i] != null) {
      places.push(i);
    }
  }
  const stride = Math.ceil(places.length / MOST_DOTS);
  if (hasDots) {
    return places.filter((_, i) => (places.length - 1 - i) % stride === 0);
  }
  return places.length === 1 ? places : [];
}
