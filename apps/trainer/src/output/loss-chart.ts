// Draws the losses of a run as an SVG that stands by itself.

import { scaleLinear } from 'd3-scale';
import { line } from 'd3-shape';

const WIDTH = 720;
const HEIGHT = 400;
const MARGIN = { top: 36, right: 20, bottom: 44, left: 56 };

/** An SVG of loss over steps (the first is step 1). Losses that are not finite are left out. */
export function lossChart(losses: readonly number[], title: string): string {
  const points = losses
    .map((loss, index) => [index + 1, loss] as [number, number])
    .filter(([, loss]) => Number.isFinite(loss));
  const empty = points.length === 0;
  const low = empty ? 0 : points.reduce((least, [, loss]) => Math.min(least, loss), Infinity);
  const high = empty ? 1 : points.reduce((most, [, loss]) => Math.max(most, loss), -Infinity);
  const x = scaleLinear([1, Math.max(2, losses.length)], [MARGIN.left, WIDTH - MARGIN.right]);
  const y = scaleLinear(
    [low, high === low ? low + 1 : high],
    [HEIGHT - MARGIN.bottom, MARGIN.top],
  ).nice();
  const path = line<[number, number]>()
    .x(([step]) => tenths(x(step)))
    .y(([, loss]) => tenths(y(loss)))(drawn(points, x));
  const bottom = HEIGHT - MARGIN.bottom;
  const right = WIDTH - MARGIN.right;
  const rows = y.ticks(6).map((tick) => {
    const at = y(tick).toFixed(1);
    return `<line x1="${MARGIN.left}" x2="${right}" y1="${at}" y2="${at}" stroke="#ddd"/><text x="${MARGIN.left - 8}" y="${at}" dy="0.32em" text-anchor="end">${y.tickFormat(6)(tick)}</text>`;
  });
  const columns = x.ticks(8).map((tick) => {
    const at = x(tick).toFixed(1);
    return `<line x1="${at}" x2="${at}" y1="${bottom}" y2="${bottom + 5}" stroke="#888"/><text x="${at}" y="${bottom + 18}" text-anchor="middle">${tick}</text>`;
  });
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${HEIGHT}" viewBox="0 0 ${WIDTH} ${HEIGHT}" font-family="sans-serif" font-size="12" fill="#333">`,
    `<rect width="${WIDTH}" height="${HEIGHT}" fill="#fff"/>`,
    `<text x="${MARGIN.left}" y="22" font-size="14">${escapeXml(title)}</text>`,
    ...rows,
    `<line x1="${MARGIN.left}" x2="${right}" y1="${bottom}" y2="${bottom}" stroke="#888"/>`,
    ...columns,
    `<text x="${(MARGIN.left + right) / 2}" y="${HEIGHT - 8}" text-anchor="middle">step</text>`,
    `<text transform="translate(14 ${(MARGIN.top + bottom) / 2}) rotate(-90)" text-anchor="middle">loss</text>`,
    `<path d="${path ?? ''}" fill="none" stroke="#2563eb" stroke-width="1.5"/>`,
    '</svg>',
    '',
  ].join('\n');
}

/** The points of which something is seen: in each column of pixels the least and the most. */
function drawn(
  points: readonly [step: number, loss: number][],
  x: (step: number) => number,
): [number, number][] {
  type Point = [step: number, loss: number];
  const columns = new Map<number, Record<'first' | 'least' | 'most' | 'last', Point>>();
  for (const point of points) {
    const column = Math.round(x(point[0]));
    const ends = columns.get(column) ?? { first: point, least: point, most: point, last: point };
    ends.least = point[1] < ends.least[1] ? point : ends.least;
    ends.most = point[1] > ends.most[1] ? point : ends.most;
    ends.last = point;
    columns.set(column, ends);
  }
  return [...columns.values()].flatMap((ends) =>
    [...new Set(Object.values(ends))].sort(([a], [b]) => a - b),
  );
}

/** Rounds to a tenth of a pixel, which is finer than a screen shows. */
function tenths(x: number): number {
  return Math.round(x * 10) / 10;
}

/** The text as the content of an element. */
export function escapeXml(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;');
}
