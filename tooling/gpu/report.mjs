// Formats the rows of a run on a GPU machine as Markdown.

import { hardwareTable } from '../../bench/figures/hardware-table.mjs';

/** The f32 rate of an H100 or H200 SXM without matrix units, TFLOP/s, by NVIDIA's data sheet. */
const PEAK = 67;

/** @param {ReturnType<typeof import('../../bench/figures/rows.mjs').readRows>} report */
export function renderReport({ about, parts }) {
  const { date = '', commit = '', node, cores, memoryBytes = 0, adapters = [], tried = [] } = about;
  const lines = [
    `# GPU report, ${date.slice(0, 10)}`,
    '',
    `Commit ${commit.slice(0, 12)}, Node ${node}, ${cores} cores, ` +
      `${Math.round(memoryBytes / 2 ** 30)} GiB. Made by \`tooling/gpu/run.sh\`.`,
    '',
    '## Adapter',
    ...adapters.flatMap(adapterLines),
    ...(adapters.length === 0 ? ['None that Dawn accepts.'] : []),
    '',
    'Drivers tried:',
    ...tried.map((text) => `- ${text}`),
    '',
    '## Parts',
    '| part | result | seconds |',
    '| --- | --- | --- |',
    ...parts.map((part) => `| ${part.part} | ${endOf(part)} | ${part.seconds?.toFixed(1) ?? ''} |`),
  ];
  for (const part of parts) {
    lines.push('', `## ${part.part}`, ...partLines(part));
  }
  return `${lines.join('\n')}\n`;
}

function endOf({ ended }) {
  return ended === 0 ? 'ok' : ended === undefined ? 'broken off' : `ended by ${ended}`;
}

function adapterLines({ vendor, architecture, description, isSoftware, features, limits }) {
  return [
    `- ${vendor} ${architecture}, ${description}, ${isSoftware ? 'software' : 'hardware'}`,
    `- features: ${features.join(', ')}`,
    `- limits: ${Object.entries(limits)
      .map(([name, value]) => `${name} ${value}`)
      .join(', ')}`,
  ];
}

function partLines({ rows, tail }) {
  const lines = [];
  for (const row of rows) {
    if (row.is !== undefined) {
      lines.push(`- ${row.about ?? row.engine}: ${row.is}`);
    } else if (row.case !== undefined) {
      lines.push(`- ${row.case}: ${row.says}`);
    } else if (row.error !== undefined) {
      lines.push(`- ${row.name}: ${row.error}`);
    }
  }
  const counts = rows.findLast(({ passed }) => passed !== undefined);
  if (counts !== undefined) {
    lines.push(`- ${counts.passed} of ${counts.of} cases passed, ${counts.failed} failed`);
  }
  const steps = rows.filter(({ step }) => step !== undefined);
  if (steps.length > 0) {
    lines.push(...trainingLines(steps, rows.at(-1)));
  }
  const text = hardwareTable(rows, { peak: PEAK });
  lines.push(...(text === '' ? [] : ['', text]));
  if (tail !== undefined) {
    lines.push('```', tail, '```');
  }
  return lines;
}

function trainingLines(steps, { params, device, numericClass, peaks = [] }) {
  const ms = median(steps.map(({ stepMs }) => stepMs));
  const tokens = median(steps.map(({ tokensPerSecond }) => tokensPerSecond));
  const [first, last] = [steps[0].loss, steps.at(-1).loss];
  return [
    `- loss ${first?.toFixed(4)} to ${last?.toFixed(4)} in ${steps.length} steps`,
    `- median step ${ms.toFixed(1)} ms, ${Math.round(tokens)} tokens a second`,
    ...(params === undefined ? [] : [`- ${params} parameters on ${device}, ${numericClass}`]),
    ...peaks.map((bytes, rank) => `- rank ${rank}: peak ${bytes} bytes`),
  ];
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[sorted.length >> 1] ?? Number.NaN;
}
