// The plots over the steps: what each shows of a step, and how its numbers are written.

import { formatBytes, formatCount, formatMs } from '../format.js';
import type { StepLine } from '../output/run-records.js';

export interface ChartSeries {
  readonly name: string;
  /** The value of a step; null where the step has none. */
  value(line: StepLine): number | null;
  /** Whether points are joined over steps without a value, as for validation. */
  readonly isSparse?: boolean;
  /** A color of the palette. Default: the run's own color. */
  readonly color?: string;
}

export interface Chart {
  readonly id: string;
  readonly title: string;
  /** The unit of the numbers, after the title. */
  readonly unit: string;
  readonly series: readonly ChartSeries[];
  /** A number as text, for the table and beside the plot. */
  format(value: number): string;
  /** A number as text for the axis, where `format` is too long. */
  formatTick?(value: number): string;
  /** Whether areas lie on top of each other; the last series is the lowest. */
  readonly isStacked?: boolean;
  /** Whether noise hides the trend, so that smoothing helps. */
  readonly isNoisy?: boolean;
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

/** The shortest text of at most four digits. */
const short = (value: number) => String(Number(value.toPrecision(4)));

/** The two figures of each task that tell most. */
const FIGURES: readonly (readonly [first: string, second?: string])[] = [
  ['ndcg@10', 'mrr'],
  ['accuracy', 'f1'],
  ['spearman'],
];

function figureSeries(name: string): ChartSeries {
  return { name, value: ({ figures }) => or(figures?.[name]), isSparse: true };
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
        color: 'validation',
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
        return { ...figureSeries(name), color: 'validation' };
      }),
    ],
    format: digits,
    formatTick: short,
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
    format: (value) => value.toExponential(2),
    formatTick: (value) => (value === 0 ? '0' : value.toExponential(1)),
  },
  {
    id: 'speed',
    title: 'Throughput',
    unit: 'tokens a second',
    series: [{ name: 'tokens/s', value: (line) => line.tokensPerSecond }],
    format: formatCount,
    isNoisy: true,
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
      { name: 'exposed', value: (line) => or(line.exposedMs), color: 'exposed' },
    ],
    format: formatMs,
    isStacked: true,
    note: 'Hidden: collectives ran while the device computed. Exposed: it had nothing else to do.',
  },
  {
    id: 'wire',
    title: 'On the wire',
    unit: 'sent in a step, rank 0',
    series: [{ name: 'sent', value: (line) => or(line.wireBytes) }],
    format: formatBytes,
    isBytes: true,
  },
];

/** An exponential mean over about `steps` steps; a step without a value stays without. */
export function smoothed(values: readonly (number | null)[], steps: number): (number | null)[] {
  const keep = 1 - 1 / steps;
  let mean = 0;
  let weight = 0;
  return values.map((value) => {
    if (value === null) {
      return null;
    }
    mean = keep * mean + (1 - keep) * value;
    weight = keep * weight + (1 - keep);
    return mean / weight;
  });
}
