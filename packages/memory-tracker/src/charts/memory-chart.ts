// Draws a trace over its samples: live bytes by tag, stacked, and the pool's reserve above them.

import { formatBytes } from '@shardweave/dtypes/messages';
import { MEMORY_TAGS, type MemoryTag } from '@shardweave/tensor-core';
import { scaleLinear } from 'd3-scale';
import { area, curveStep, line, type SeriesPoint, stack } from 'd3-shape';
import type { MemoryPhase, MemorySample, MemoryTrace } from '../memory-trace.js';
import { labelOf } from '../summary.js';
import { ByteAxis, escapeXml, shortened, svgText, tenths } from './svg.js';

const WIDTH = 960;
const PLOT = { top: 72, right: WIDTH - 24, bottom: 370, left: 64 };
const NAMES_HEIGHT = 140; // the longest name, slanted
const LINE_HEIGHT = 36; // of what stands in their place
/** With more samples than this, names would overlap. */
const MAX_NAMES = 60;
const MAX_NAME_LENGTH = 22; // what fits below the plot

/** Okabe and Ito's colors, which color-blind readers can tell apart too. */
const COLORS: Readonly<Record<MemoryTag, string>> = {
  parameter: '#0072b2',
  gathered: '#56b4e9',
  gradient: '#e69f00',
  optimizer: '#cc79a7',
  activation: '#009e73',
  staging: '#d55e00',
};
const RESERVED = '#333';
const PHASES: Readonly<Record<MemoryPhase, string>> = {
  forward: '#ffffff',
  recompute: '#e5e7eb',
  backward: '#f3f4f6',
};

/**
 * An SVG of the memory at every sample. Backward has a gray background, and a sample's numbers show
 * on hover.
 */
export function memoryChart(trace: MemoryTrace, title = 'Memory, module by module'): string {
  const { samples } = trace;
  const highest = samples.reduce(
    (most, { liveBytes, reservedBytes }) => Math.max(most, liveBytes.total, reservedBytes),
    0,
  );
  const x = scaleLinear([-0.5, Math.max(0, samples.length - 1) + 0.5], [PLOT.left, PLOT.right]);
  const y = new ByteAxis(highest, [PLOT.bottom, PLOT.top], 6);
  const at = (index: number): number => tenths(x(index));
  const below = samples.length > MAX_NAMES ? LINE_HEIGHT : NAMES_HEIGHT;
  return svgText({ width: WIDTH, height: PLOT.bottom + below }, [
    `<text x="${PLOT.left}" y="24" font-size="15">${escapeXml(title)}</text>`,
    ...legend(),
    ...phaseBands(samples, at),
    ...y.rows(PLOT.left, PLOT.right),
    ...areas(samples, at, y),
    `<line x1="${PLOT.left}" x2="${PLOT.right}" y1="${PLOT.bottom}" y2="${PLOT.bottom}" stroke="#888"/>`,
    ...names(samples, at),
    `<text transform="translate(16 ${(PLOT.top + PLOT.bottom) / 2}) rotate(-90)" text-anchor="middle">${y.unitName}</text>`,
    ...hovers(samples, at),
  ]);
}

function areas(samples: readonly MemorySample[], at: (i: number) => number, y: ByteAxis): string[] {
  if (samples.length === 0) {
    return [];
  }
  // A value holds for half a sample to either side, at the two ends too.
  const padded = [samples[0]!, ...samples, samples.at(-1)!];
  const place = (i: number): number => at(Math.min(Math.max(i - 1, -0.5), samples.length - 0.5));
  const series = stack<MemorySample, MemoryTag>()
    .keys(MEMORY_TAGS)
    .value(({ liveBytes }, tag) => liveBytes[tag])(padded);
  const shape = area<SeriesPoint<MemorySample>>()
    .x((_, i) => place(i))
    .y0(([low]) => y.at(low))
    .y1(([, high]) => y.at(high))
    .curve(curveStep);
  const reserve = line<MemorySample>()
    .x((_, i) => place(i))
    .y(({ reservedBytes }) => y.at(reservedBytes))
    .curve(curveStep);
  return [
    ...series.map((line) => `<path d="${shape(line)}" fill="${COLORS[line.key]}"/>`),
    `<path d="${reserve(padded)}" fill="none" stroke="${RESERVED}" stroke-width="1.5" stroke-dasharray="5 3"/>`,
  ];
}

/** The background of consecutive samples of one phase. */
function phaseBands(samples: readonly MemorySample[], at: (i: number) => number): string[] {
  const starts = samples.flatMap(({ phase }, i) => (phase === samples[i - 1]?.phase ? [] : [i]));
  return starts.map((start, i) => {
    const end = starts[i + 1] ?? samples.length;
    const [left, right] = [at(start - 0.5), at(end - 0.5)];
    const { phase } = samples[start]!;
    const isWide = right - left > 7 * phase.length; // a narrower band has no room for the word
    const height = PLOT.bottom - PLOT.top;
    return [
      `<rect x="${left}" y="${PLOT.top}" width="${tenths(right - left)}" height="${height}" fill="${PHASES[phase]}"/>`,
      isWide
        ? `<text x="${tenths((left + right) / 2)}" y="${PLOT.top - 6}" text-anchor="middle" fill="#666">${phase}</text>`
        : '',
    ].join('');
  });
}

function legend(): string[] {
  const spacing = 112;
  const tags = MEMORY_TAGS.map((tag, i) => {
    const x = PLOT.left + i * spacing;
    return `<rect x="${x}" y="36" width="12" height="12" fill="${COLORS[tag]}"/><text x="${x + 18}" y="46">${tag}</text>`;
  });
  const x = PLOT.left + MEMORY_TAGS.length * spacing;
  return [
    ...tags,
    `<line x1="${x}" x2="${x + 24}" y1="42" y2="42" stroke="${RESERVED}" stroke-width="1.5" stroke-dasharray="5 3"/><text x="${x + 30}" y="46">reserved</text>`,
  ];
}

function names(samples: readonly MemorySample[], at: (i: number) => number): string[] {
  if (samples.length > MAX_NAMES) {
    const x = (PLOT.left + PLOT.right) / 2;
    return [`<text x="${x}" y="${PLOT.bottom + 22}" text-anchor="middle">samples in order</text>`];
  }
  return samples.map((sample, i) => {
    const text = escapeXml(shortened(labelOf(sample), MAX_NAME_LENGTH));
    return `<text transform="translate(${at(i)} ${PLOT.bottom + 8}) rotate(-60)" text-anchor="end" dy="0.6em" font-size="11">${text}</text>`;
  });
}

function hovers(samples: readonly MemorySample[], at: (i: number) => number): string[] {
  const height = PLOT.bottom - PLOT.top;
  return samples.map((sample, i) => {
    const { liveBytes, reservedBytes, phase } = sample;
    const tags = MEMORY_TAGS.filter((tag) => liveBytes[tag] > 0);
    const lines = [
      `${labelOf(sample)}, ${phase}`,
      `live ${formatBytes(liveBytes.total)}, reserved ${formatBytes(reservedBytes)}`,
      ...tags.map((tag) => `${tag} ${formatBytes(liveBytes[tag])}`),
    ];
    const width = tenths(at(i + 0.5) - at(i - 0.5));
    // Lines are joined after escaping, because a newline is a control character.
    const text = lines.map(escapeXml).join('\n');
    return `<rect x="${at(i - 0.5)}" y="${PLOT.top}" width="${width}" height="${height}" fill="transparent"><title>${text}</title></rect>`;
  });
}
