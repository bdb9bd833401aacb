// The plots over the steps: what each shows of a step, and how its numbers are written.

import { formatBytes, formatCount, formatMs } from '../output/format.js';
import type { StepLine } from '../output/run-records.js';

export interface ChartSeries {
  readonly name: string;
  /** The value that a step has; null where it has none. */
  value(line: StepLine): number | null;
  /** Points joined over steps that have none, as validation has. */
  readonly isSparse?: boolean;
  /** A color of the palette; without it a run's own color. */
  readonly color?: string;
}

export interface Chart {
  readonly id: string;
  readonly title: string;
  /** Behind the title, what the numbers are. */
  readonly unit: string;
  readonly series: readonly ChartSeries[];
  /** As in the table and beside the plot. */
  format(value: number): string;
  /** On the axis, where `format` is too long. */
  formatTick?(value: number): string;
  /** Areas on top of each other; the last series is the lowest. */
  readonly isStacked?: boolean;
  /** Whether noise hides the course of it, so that smoothing helps. */
  readonly isNoisy?: boolean;
  readonly isBytes?: boolean;
  readonly note?: string;
}

const or = (value: number | null | undefined): number | null => value ?? null;

/** Four digits that count: 3.413, 0.01234. */
const digits = (value: number) => {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) {
    return value.toExponential(2);
  }
  return value.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : 4);
};

/** As short as its digits let it be. */
const short = (value: number) => String(Number(value.toPrecision(4)));

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

/** An exponential mean over about `steps` steps; what a step lacks stays away. */
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
