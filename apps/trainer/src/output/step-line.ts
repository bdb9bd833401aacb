// The line of a step. Columns keep their place whatever the numbers are, so that they can be read
// down.

import { formatBytes, formatCount, formatMs } from '../format.js';
import type { StepMetrics, StepResources } from '../rank/events.js';

const BAR = ' | ';
/** The columns that a narrow terminal does without, the first one first. */
const DISPENSABLE = ['wire', 'peak', 'lr', 'norm', 'tok/s'];

/**
 * The line `step  120/1000 | loss 3.4127 | norm 0.91 | lr 2.7e-4 | 182 ms | ...`, without a line
 * break. Columns that don't fit `width` characters are left out.
 */
export function stepLine(
  metrics: StepMetrics,
  resources: StepResources,
  { steps, width: room = Number.POSITIVE_INFINITY }: { steps: number; width?: number | undefined },
): string {
  const width = String(steps).length;
  const hasTargets = metrics.targets > 0;
  const loss = hasTargets ? metrics.loss.toFixed(4) : '-';
  const finite = metrics.gradNorm?.toFixed(2) ?? 'inf';
  const norm = hasTargets ? finite : '-';
  const columns = [
    `step ${String(metrics.step).padStart(width)}/${steps}`,
    `loss ${loss.padStart(7)}`,
    ...(metrics.validLoss === undefined
      ? []
      : [`valid ${metrics.validLoss.toFixed(4).padStart(7)}`]),
    ...Object.entries(metrics.figures ?? {})
      .slice(0, 1)
      .map(([name, value]) => `${name} ${value.toFixed(4)}`),
    `norm ${norm.padStart(6)}`,
    `lr ${metrics.lr.toExponential(1).padStart(7)}`,
    formatMs(metrics.stepMs).padStart(7),
    `${formatCount(metrics.tokensPerSecond).padStart(5)} tok/s`,
    `peak ${formatBytes(resources.peakBytes).padStart(8)}`,
    `wire ${formatBytes(resources.wireBytes).padStart(8)}`,
  ];
  if (metrics.skipped) {
    columns.push(hasTargets ? 'skipped: overflow' : 'skipped: no targets');
  }
  let left = columns;
  for (const name of DISPENSABLE) {
    if (left.join(BAR).length <= room) {
      break;
    }
    left = left.filter((column) => !column.includes(name));
  }
  return left.join(BAR);
}
