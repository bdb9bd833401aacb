// The line of a step. Columns keep their place whatever the numbers are, so that they can be read
// down.

import { formatBytes, formatCount, formatMs } from '../format.js';
import type { StepMetrics, StepResources } from '../rank/events.js';
import { spanText } from '../times.js';
import type { Pace } from './step-pace.js';

const BAR = ' | ';

type Column = readonly [name: string, text: string];

/** The columns that a narrow terminal does without, the first one first. */
const DISPENSABLE = [
  ...['wire', 'peak', 'epoch', 'tokens', 'time', 'margin', 'lr', 'norm', 'speed'],
];

export interface StepLineOptions {
  /** The number of the run's last step. */
  readonly steps: number;
  /** The width in characters that there is. Default: any. */
  readonly width?: number | undefined;
  readonly pace: Pace;
}

/**
 * The line `step  120/1000 | loss 3.4127 | norm 0.91 | lr 2.7e-4 | 182 ms | ...`, without a line
 * break. Columns that don't fit are left out.
 */
export function stepLine(
  metrics: StepMetrics,
  resources: StepResources,
  { steps, width: room = Number.POSITIVE_INFINITY, pace }: StepLineOptions,
): string {
  const width = String(steps).length;
  const hasTargets = metrics.targets > 0;
  const loss = Number.isNaN(pace.loss) && !hasTargets ? '-' : pace.loss.toFixed(4);
  const finite = metrics.gradNorm?.toFixed(2) ?? 'inf';
  const norm = hasTargets ? finite : '-';
  const { validLoss, figures = {}, batchFigures = {}, skipped, epoch } = metrics;
  const columns: Column[] = [
    ['step', `step ${String(metrics.step).padStart(width)}/${steps}`],
    ['loss', `loss ${loss.padStart(7)}`],
  ];
  const own = Object.entries(batchFigures);
  for (const [name, value] of own) {
    columns.push([name, `${name} ${value.toFixed(4).padStart(7)}`]);
  }
  if (validLoss !== undefined) {
    columns.push(['valid', `valid ${validLoss.toFixed(4).padStart(7)}`]);
  }
  for (const [name, value] of Object.entries(figures).slice(0, 1)) {
    const valid = own.length === 0 ? '' : 'valid ';
    columns.push(['figure', `${valid}${name} ${value.toFixed(4)}`]);
  }
  columns.push(
    ['norm', `norm ${norm.padStart(6)}`],
    ['lr', `lr ${metrics.lr.toExponential(1).padStart(7)}`],
    ['ms', formatMs(metrics.stepMs).padStart(7)],
    ['speed', `${formatCount(metrics.tokensPerSecond).padStart(5)} tok/s`],
    ['tokens', `${formatCount(metrics.tokens).padStart(5)} tokens`],
    ['epoch', `epoch ${epoch.toFixed(2).padStart(5)}`],
    [
      'time',
      `${spanText(pace.elapsedMs).padStart(11)}, ${spanText(pace.leftMs).padStart(11)} left`,
    ],
    ['peak', `peak ${formatBytes(resources.peakBytes).padStart(8)}`],
    ['wire', `wire ${formatBytes(resources.wireBytes).padStart(8)}`],
  );
  if (skipped) {
    columns.push(['skipped', hasTargets ? 'skipped: overflow' : 'skipped: no targets']);
  }
  const textOf = (left: readonly Column[]) => left.map(([, text]) => text).join(BAR);
  let left: readonly Column[] = columns;
  for (const name of DISPENSABLE) {
    if (textOf(left).length <= room) {
      break;
    }
    left = left.filter(([column]) => column !== name);
  }
  return textOf(left);
}
