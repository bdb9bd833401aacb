// The plots over the steps: what each shows of a step, and how its numbers are written.

import { formatBytes, formatCount, formatMs } from '../../format.js';
import type { StepLine } from '../../output/run-records.js';
import { NUM_RUN_COLORS, runDash } from '../look/palette.js';
import type { RunModel } from '../run/run-model.js';

export interface ChartSeries {
  readonly name: string;
  /** The value of a step; null where the step has none. */
  value(line: StepLine): number | null;
  /** Whether points are joined over steps without a value, as for validation. */
  readonly isSparse?: boolean;
  /** Whether its values have dots, too, so that they are seen above dense lines. */
  readonly hasDots?: boolean;
  /** A color of the palette, where there is one run. Default: the run's own color. */
  readonly color?: string;
  /** The place between the first layer (0) and the last one (1), which gives the color. */
  readonly depth?: number;
  /** Its dashes, where there is one run. */
  readonly dash?: readonly number[];
}

export interface Chart {
  readonly id: string;
  readonly title: string;
  /** The unit of the numbers, after the title. */
  readonly unit: string;
  readonly series: readonly ChartSeries[] | ((run: RunModel) => readonly ChartSeries[]);
  /** What is drawn of each run where there are several. Default: the same. */
  readonly ofSeveral?: readonly ChartSeries[];
  /** A number as text, for the table and beside the plot. */
  format(value: number): string;
  /** A number as text for the axis, where `format` is too long. */
  formatTick?(value: number): string;
  /** Whether areas lie on top of each other; the last series is the lowest. */
  readonly isStacked?: boolean;
  /** Whether noise hides the trend, so that smoothing helps. */
  readonly isNoisy?: boolean;
  /** Whether the axis begins at zero, since the share matters and not the change. */
  readonly isFromZero?: boolean;
  /** Whether nothing is drawn where all is zero: one rank sends nothing to anybody. */
  readonly isOfSeveralRanks?: boolean;
  /** Whether its axis is logarithmic until somebody changes that. */
  readonly isLog?: boolean;
  readonly isBytes?: boolean;
  readonly note?: string;
}

const or = (value: number | null | undefined): number | null => value ?? null;

/** Four significant digits: 3.413, 0.01234. */
const digits = (value: number) => {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) {
    return value.toExponential(2);
  }
  return value.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : 4);
};

const exponent = (value: number) => (value === 0 ? '0' : value.toExponential(2));

const shortExponent = (value: number) =>
  value === 0 ? '0' : Number(value.toPrecision(3)).toExponential();

/** The shortest text of at most four digits. */
const short = (value: number) => String(Number(value.toPrecision(4)));

const VALIDATION_DASH: readonly number[] = [6, 4];
const EXPOSED: ChartSeries = {
  name: 'exposed',
  value: (line) => or(line.exposedMs),
  color: 'exposed',
};

/** The two figures of each task that tell most. */
const FIGURES: readonly (readonly [first: string, second?: string])[] = [
  ['ndcg@10', 'mrr'],
  ['accuracy', 'f1'],
  ['spearman'],
  ['exact', 'json'],
];

function figureSeries(name: string): ChartSeries {
  return { name, value: ({ figures }) => or(figures?.[name]), isSparse: true, hasDots: true };
}

type GroupFigure = 'gradNorm' | 'updateRatio';

/** The largest figure of all groups of layers, for runs over each other. */
function largestOf(figure: GroupFigure): ChartSeries {
  return {
    name: 'largest',
    value: ({ groups }) => {
      const told = Object.values(groups ?? {}).flatMap((group) => group[figure] ?? []);
      return told.length === 0 ? null : Math.max(...told);
    },
    isSparse: true,
  };
}

export const CHARTS: readonly Chart[] = [
  {
    id: 'loss',
    title: 'Loss',
    unit: 'nats a target',
    series: [
      { name: 'training', value: (line) => line.loss },
      {
        name: 'validation',
        value: (line) => or(line.validLoss),
        isSparse: true,
        hasDots: true,
        color: 'validation',
        dash: VALIDATION_DASH,
      },
    ],
    format: digits,
    formatTick: short,
    isNoisy: true,
  },
  {
    id: 'figures',
    title: 'Task',
    unit: 'by what is evaluated',
    series: [
      ...FIGURES.map(([name]) => figureSeries(name)),
      ...FIGURES.flatMap(([, second]) => second ?? []).map((name) => {
        return { ...figureSeries(name), color: 'validation', dash: VALIDATION_DASH };
      }),
    ],
    format: digits,
    formatTick: short,
  },
  {
    id: 'preferred',
    title: 'Preferred',
    unit: 'part of the pairs whose chosen answer is',
    series: [{ name: 'training', value: ({ batchFigures }) => or(batchFigures?.accuracy) }],
    format: digits,
    formatTick: short,
    isNoisy: true,
  },
  {
    id: 'margin',
    title: 'Margin',
    unit: 'of chosen answers over rejected ones',
    series: [
      { name: 'training', value: ({ batchFigures }) => or(batchFigures?.margin) },
      {
        ...figureSeries('margin'),
        ...{ name: 'validation', color: 'validation', dash: VALIDATION_DASH },
      },
    ],
    format: digits,
    formatTick: short,
    isNoisy: true,
  },
  {
    id: 'norm',
    title: 'Gradient norm',
    unit: 'before clipping',
    series: [{ name: 'norm', value: (line) => line.gradNorm }],
    format: digits,
    formatTick: short,
    isNoisy: true,
  },
  {
    id: 'rate',
    title: 'Learning rate',
    unit: '',
    series: [{ name: 'rate', value: (line) => line.lr }],
    format: exponent,
    formatTick: shortExponent,
  },
  {
    id: 'speed',
    title: 'Throughput',
    unit: 'tokens a second',
    series: [{ name: 'tokens/s', value: (line) => line.tokensPerSecond }],
    format: formatCount,
    isNoisy: true,
    isFromZero: true,
  },
  {
    id: 'communication',
    title: 'Communication',
    unit: 'ms of a step, rank 0',
    series: [
      {
        name: 'hidden',
        value: ({ collectiveMs, exposedMs }) =>
          collectiveMs == null || exposedMs == null ? null : collectiveMs - exposedMs,
        color: 'hidden',
      },
      EXPOSED,
    ],
    ofSeveral: [EXPOSED],
    format: formatMs,
    isNoisy: true,
    isStacked: true,
    isFromZero: true,
    isOfSeveralRanks: true,
    note: 'Hidden: collectives ran while the device computed. Exposed: it had nothing else to do.',
  },
  {
    id: 'wire',
    title: 'On the wire',
    unit: 'sent in a step, rank 0',
    series: [{ name: 'sent', value: (line) => or(line.wireBytes) }],
    format: formatBytes,
    isBytes: true,
    isFromZero: true,
    isOfSeveralRanks: true,
  },
  {
    id: 'beside',
    title: 'Evaluation and saves',
    unit: 'ms after a step',
    series: [
      { name: 'evaluation', value: (line) => or(line.evalMs), isSparse: true, hasDots: true },
      {
        name: 'waiting for a save',
        value: (line) => or(line.saveWaitMs),
        isSparse: true,
        hasDots: true,
        color: 'validation',
        dash: VALIDATION_DASH,
      },
    ],
    format: formatMs,
    isFromZero: true,
  },
  {
    id: 'group-norms',
    title: 'Gradient norm by layer',
    unit: 'before clipping',
    series: (run) => groupSeries(run, 'gradNorm'),
    ofSeveral: [largestOf('gradNorm')],
    format: digits,
    formatTick: short,
    isLog: true,
  },
  {
    id: 'group-updates',
    title: 'Update by layer',
    unit: 'share of the weights',
    series: (run) => groupSeries(run, 'updateRatio'),
    ofSeveral: [largestOf('updateRatio')],
    format: exponent,
    formatTick: shortExponent,
    isLog: true,
  },
];

/** The series of a chart that are drawn of `run`, which is one of `numRuns`. */
export function seriesOf(chart: Chart, run: RunModel, numRuns: number): readonly ChartSeries[] {
  if (numRuns > 1 && chart.ofSeveral !== undefined) {
    return chart.ofSeveral;
  }
  return typeof chart.series === 'function' ? chart.series(run) : chart.series;
}

/** A series a group of layers: numbered ones by their depth, others in colors of their own. */
function groupSeries({ groups }: RunModel, figure: GroupFigure): ChartSeries[] {
  const names = [...groups];
  const layers = names.filter((name) => /\d+$/.test(name));
  const others = names.filter((name) => !layers.includes(name));
  return names.map((name) => {
    const depth = layers.indexOf(name) / Math.max(1, layers.length - 1);
    const other = others.indexOf(name) + 1;
    return {
      name,
      value: (line) => line.groups?.[name]?.[figure] ?? null,
      isSparse: true,
      ...(other === 0
        ? { depth }
        : { color: `run-${other % NUM_RUN_COLORS}`, dash: runDash(other) }),
    };
  });
}
