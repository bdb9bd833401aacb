// Draws one number of each module of a forward as bars, in the order of the forward.

import { formatBytes } from '@shardweave/dtypes/messages';
import { firstForward, type MemorySample, type MemoryTrace } from '../memory-trace.js';
import { labelOf } from '../summary.js';
import { ByteAxis, escapeXml, shortened, svgText, tenths } from './svg.js';

/** What a bar may show: a field of a sample. */
export type LayerMeasure =
  | 'activationBytes'
  | 'parameterBytes'
  | 'gatheredBytes'
  | 'forwardDeltaBytes';

const TITLES: Readonly<Record<LayerMeasure, string>> = {
  activationBytes: 'Activations by module',
  parameterBytes: 'Parameters by module',
  gatheredBytes: 'Gathered up to each module',
  forwardDeltaBytes: 'Growth over each module, and freed (light)',
};

const WIDTH = 960;
const ROW = 20; // px per module
const TOP = 48;
const BOTTOM = 48;
const LEFT = 220;
const RIGHT = WIDTH - 96; // leaves room for the longest value
const MAX_NAME_LENGTH = 32; // what fits left of the bars
const COLOR = '#0072b2';
const FREED = '#56b4e9';

/**
 * An SVG of the trace's first forward: one row per module, with the number at the end of its bar.
 */
export function layerChart(
  trace: MemoryTrace,
  measure: LayerMeasure = 'activationBytes',
  title = TITLES[measure],
): string {
  const samples = firstForward(trace);
  const height = TOP + Math.max(1, samples.length) * ROW + BOTTOM;
  const longest = samples.reduce((most, sample) => Math.max(most, Math.abs(sample[measure])), 0);
  const axis = new ByteAxis(longest, [LEFT, RIGHT], 8);
  const bottom = height - BOTTOM;
  return svgText({ width: WIDTH, height }, [
    `<text x="${LEFT}" y="24" font-size="15">${escapeXml(title)}</text>`,
    ...axis.columns(TOP, bottom),
    ...samples.map((sample, row) => bar(sample, sample[measure], TOP + row * ROW, axis)),
    `<line x1="${LEFT}" x2="${LEFT}" y1="${TOP}" y2="${bottom}" stroke="#888"/>`,
    `<text x="${(LEFT + RIGHT) / 2}" y="${height - 10}" text-anchor="middle">${axis.unitName}</text>`,
  ]);
}

/** The bar of one module. A module that freed memory has a light bar, and a minus sign. */
function bar(sample: MemorySample, bytes: number, top: number, axis: ByteAxis): string {
  const end = axis.at(Math.abs(bytes));
  const middle = top + ROW / 2;
  const label = escapeXml(shortened(labelOf(sample), MAX_NAME_LENGTH));
  return [
    `<text x="${LEFT - 8}" y="${middle}" dy="0.32em" text-anchor="end">${label}</text>`,
    `<rect x="${LEFT}" y="${top + 3}" width="${tenths(end - LEFT)}" height="${ROW - 6}" fill="${bytes < 0 ? FREED : COLOR}"/>`,
    `<text x="${tenths(end + 6)}" y="${middle}" dy="0.32em" font-size="11">${formatBytes(bytes)}</text>`,
  ].join('');
}
