// Reads a plot by keyboard: arrows move along its places, plus and minus zoom, 0 shows all.

import type uPlot from 'uplot';

/** Answers a key; false where it means nothing to a plot. */
export function answerKey(plot: uPlot, xs: readonly number[], key: string): boolean {
  const at = plot.cursor.idx ?? xs.length - 1;
  const leap = Math.max(1, Math.round(xs.length / 10));
  const targets: Readonly<Record<string, number>> = {
    ArrowLeft: at - 1,
    ArrowRight: at + 1,
    PageDown: at - leap,
    PageUp: at + leap,
    Home: 0,
    End: xs.length - 1,
  };
  const target = targets[key];
  if (target !== undefined) {
    moveTo(plot, xs, Math.min(xs.length - 1, Math.max(0, target)));
  } else if (key === '0') {
    showAll(plot, xs);
  } else if (key === '+' || key === '=' || key === '-') {
    zoom(plot, { around: xs[at]!, factor: key === '-' ? 2 : 0.5, xs });
  } else {
    return false;
  }
  return true;
}

function moveTo(plot: uPlot, xs: readonly number[], index: number): void {
  const x = xs[index]!;
  const { min, max } = plot.scales.x!;
  if (min == null || max == null || x < min || x > max) {
    showAll(plot, xs);
  }
  plot.setCursor({ left: plot.valToPos(x, 'x'), top: plot.height / 2 });
}

function showAll(plot: uPlot, xs: readonly number[]): void {
  plot.setScale('x', { min: xs[0]!, max: xs.at(-1)! });
}

function zoom(
  plot: uPlot,
  { around, factor, xs }: { around: number; factor: number; xs: readonly number[] },
): void {
  const { min, max } = plot.scales.x!;
  const half = (((max ?? 1) - (min ?? 0)) * factor) / 2;
  const mean = (xs.at(-1)! - xs[0]!) / Math.max(1, xs.length - 1);
  if (half >= mean / 2) {
    const low = Math.max(xs[0]!, around - half);
    plot.setScale('x', { min: low, max: Math.min(xs.at(-1)!, low + 2 * half) });
  }
}
