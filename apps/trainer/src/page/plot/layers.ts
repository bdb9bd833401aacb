// What a plot draws: the series of each run, and the layers that they become on the canvas.

import type { StepLine } from '../../output/run-records.js';
import { type Palette, runDash } from '../look/palette.js';
import { prefixOf, type RunModel } from '../run/run-model.js';
import { type Chart, type ChartSeries, seriesOf } from './charts.js';
import { rangeOf } from './scale.js';
import { smoothed } from './smoothing.js';
import type { StepAxis } from './x-axis.js';

/** A value at each place; null: the step has none, undefined: the run has no step there. */
export type Column = readonly (number | null | undefined)[];

/** A series of a run, with the values that its steps have. */
export interface Drawn {
  readonly run: number;
  readonly series: ChartSeries;
  readonly name: string;
  /** What the legend calls it, which hides all of one name: a run where there are several. */
  readonly entry: string;
  readonly values: Column;
  /** The number of the step at each place. */
  readonly steps: readonly (number | undefined)[];
}

/** What is drawn as one line. 'faint': the values behind their own mean. */
export interface Layer {
  readonly drawn: Drawn;
  readonly kind: 'faint' | 'line' | 'sparse';
  readonly values: Column;
  /** The values without those of areas below. */
  readonly own: Column;
}

export interface LayerOptions {
  readonly isShown: (drawn: Drawn) => boolean;
  /** The number of steps that noisy series have a mean over; 1: none. */
  readonly smoothing: number;
  readonly isStacked: boolean;
  readonly isLog: boolean;
  /** Whether means have spikes in them as they are. Else a spike counts as the range's edge. */
  readonly isWhole: boolean;
}

export interface Look {
  readonly color: string;
  readonly dash: readonly number[];
}

/** The values behind the means of more series than this would be mud. */
const MOST_FAINT = 4;
const LAYER_ORDER = ['faint', 'line', 'sparse'] as const;

/** The series of the shown runs. Those of evaluations are left out where a run has none. */
export function drawnOf(
  chart: Chart,
  runs: readonly RunModel[],
  { axis, isShown }: { readonly axis: StepAxis; readonly isShown: (run: number) => boolean },
): Drawn[] {
  return [...runs.keys()].filter(isShown).flatMap((run) => {
    const lines = axis.lines[run]!;
    const steps = lines.map((line) => line?.step);
    return seriesOf(chart, runs[run]!, runs.length).flatMap((series) => {
      const values = lines.map((line: StepLine | undefined) => line && series.value(line));
      const isMissing = series.isSparse === true && values.every((value) => value == null);
      const name = `${prefixOf(runs[run]!, runs)}${series.name}`;
      const entry = runs.length > 1 ? runs[run]!.name : series.name;
      return isMissing ? [] : [{ run, series, name, entry, values, steps }];
    });
  });
}

/** The layers from the back to the front: noise, means, and evaluations above the bands. */
export function layersOf(drawn: readonly Drawn[], options: LayerOptions): Layer[] {
  const shown = drawn.filter(options.isShown);
  const hasFaint = shown.filter(({ series }) => !series.isSparse).length <= MOST_FAINT;
  const owns = shown.map((series) => ownValues(series, options));
  const layers = shown.flatMap((drawn, i): Layer[] => {
    const own = owns[i]!;
    const values = options.isStacked ? stacked(owns.slice(i)) : own;
    const line: Layer = { drawn, kind: drawn.series.isSparse ? 'sparse' : 'line', values, own };
    const isMean = options.smoothing > 1 && line.kind === 'line';
    return isMean && hasFaint && !options.isStacked
      ? [{ ...line, kind: 'faint', values: visible(drawn.values, options) }, line]
      : [line];
  });
  return LAYER_ORDER.flatMap((kind) => layers.filter((layer) => layer.kind === kind));
}

/** The color and dashes of a series: a run's own where there are several runs. */
export function lookOf({ run, series }: Drawn, palette: Palette, numRuns: number): Look {
  const { color, depth, dash = [] } = series;
  if (numRuns > 1) {
    return { color: palette.run(run), dash: runDash(run) };
  }
  const own = depth === undefined ? palette.run(run) : palette.depth(depth);
  return { color: color === undefined ? own : palette.color(color), dash };
}

/** The last value known at a place. */
export function valueAt(values: Column, at: number): number | undefined {
  for (let i = at; i >= 0; i--) {
    const value = values[i];
    if (value != null) {
      return value;
    }
  }
  return;
}

/** The values of a series, or their mean. */
function ownValues({ values, steps, series }: Drawn, options: LayerOptions): Column {
  const seen = visible(values, options);
  if (options.smoothing === 1 || series.isSparse) {
    return seen;
  }
  const to = seen.length - 1;
  const { isLog, isWhole } = options;
  const { low, high } = rangeOf([seen], { from: 0, to, isLog, isWhole }) ?? { low: 0, high: 0 };
  const bounded = isWhole
    ? seen
    : seen.map((value) => (value == null ? value : Math.min(high, Math.max(low, value))));
  return smoothed(bounded, steps, options.smoothing);
}

/** A logarithmic axis has no place for zero and what is below. */
function visible(values: Column, { isLog }: LayerOptions): Column {
  return isLog ? values.map((value) => (value != null && value <= 0 ? null : value)) : values;
}

/** The first area of some that lie on top of each other begins where the others end. */
function stacked([first, ...below]: readonly Column[]): Column {
  return first!.map((value, at) =>
    value == null ? value : below.reduce((sum, values) => sum + (values[at] ?? 0), value),
  );
}
