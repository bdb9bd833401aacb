// A run as Markdown: the limits and whether they hold, then one table for each operation.
import { basename } from 'node:path';
import { headOf } from '../figures/record.mjs';
import { table } from '../figures/table.mjs';
import { limitsOf } from './limits.mjs';
import { OPERATIONS } from './operations.mjs';

/** @param run what collectives.mjs gathers @param {string | undefined} plot path of the SVG */
export function reportOf(run, plot) {
  const names = run.contenders.map(({ name }) => name);
  return `${[
    headOf('Collectives', run),
    `${run.minutes.toFixed(1)} minutes.`,
    'Bus bandwidth in GiB/s, as nccl-tests defines it: the size over the time, times 2(n-1)/n for all-reduce, (n-1)/n for all-gather and reduce-scatter, 1 for broadcast and send. The size is the larger buffer of a rank: all that is gathered, all that is scattered. f32; all-reduce in place. Every cell: best / median; all contenders stay open and take turns in every round; the time of a call is that of the slowest rank. The result of the first call of each cell and that of the last are checked.',
    run.contenders.map(({ name, says, version }) => `- ${name}: ${says} (${version})`).join('\n'),
    ...(run.leftOut.length > 0
      ? [`Left out:\n${run.leftOut.map((line) => `- ${line}`).join('\n')}`]
      : []),
    ...(plot === undefined ? [] : [`![Bus bandwidth over size](${basename(plot)})`]),
    '## What was asked, and what was measured',
    table(
      ['asked', 'holds in', 'worst'],
      limitsOf(run).map(({ asked, held, of, worst }) => [asked, `${held} of ${of}`, worst]),
    ),
    ...latencies(run, names),
    ...bandwidths(run, names),
    ...probes(run),
  ].join('\n\n')}\n`;
}

export function ranksLabel(run, worldSize) {
  return worldSize > run.cores
    ? `${worldSize} ranks (more than the ${run.cores} cores)`
    : `${worldSize} ranks`;
}

/** The times for one element, where bandwidth says nothing. */
function latencies(run, names) {
  const small = run.cells.filter(({ size }) => size <= 4);
  if (small.length === 0) {
    return [];
  }
  const rows = groupBy(small, inReportOrder).map((cells) => [
    `${OPERATIONS[cells[0].operation].title}, ${ranksLabel(run, cells[0].worldSize)}`,
    ...columnsOf(cells, names, latencyOf),
  ]);
  return ['## Latency of one element a rank, microseconds', table(['operation', ...names], rows)];
}

function bandwidths(run, names) {
  const large = run.cells.filter(({ size }) => size > 4);
  return groupBy(large, inReportOrder).flatMap((cells) => {
    const [{ operation, worldSize }] = cells;
    const sizes = [...new Set(cells.map(({ size }) => size))];
    const rows = sizes.map((size) => [
      formatBytes(size),
      ...columnsOf(
        cells.filter((cell) => cell.size === size),
        names,
        rateOf,
      ),
    ]);
    const title = `## ${OPERATIONS[operation].title}, ${ranksLabel(run, worldSize)}, GiB/s`;
    return [title, table(['size', ...names], rows)];
  });
}

/** One column for each contender. */
function columnsOf(cells, names, format) {
  return names.map((name) => {
    const cell = cells.find(({ contender }) => contender === name);
    if (cell === undefined) {
      return '-';
    }
    return cell.error === undefined ? format(cell) : 'failed';
  });
}

function inReportOrder({ operation, worldSize }) {
  return `${Object.keys(OPERATIONS).indexOf(operation)} ${worldSize}`;
}

function probes(run) {
  const rows = groupBy(
    run.probes.filter(({ error }) => error === undefined),
    ({ contender, worldSize }) => `${contender} ${worldSize}`,
  ).map((group) => {
    const worst = group.reduce((a, b) => (b.heldMs > a.heldMs ? b : a), { heldMs: 0 });
    const memory = group.find((row) => row.memory !== undefined)?.memory;
    const mib = (x) => x.toFixed(1);
    return [
      group[0].contender,
      group[0].worldSize,
      `${worst.heldMs.toFixed(1)} (${worst.operation})`,
      ...['coreMs', 'gapMs'].map((field) =>
        Math.max(...group.map((probe) => probe[field])).toFixed(1),
      ),
      ...(memory === undefined
        ? ['-', '-', '-']
        : [mib(memory.beforeMiB), mib(memory.afterMiB), mib(memory.peakMiB)]),
    ];
  });
  if (rows.length === 0) {
    return [];
  }
  return [
    '## The event loop and memory in calls of 64 MiB',
    'Held: the longest gap in a chain of setImmediate, less the time that the thread waited for a core; on a core: the longest that it ran between two turns, which other work on the machine does not stretch. Memory outside the heap in the steady state of all-reduce, after a collection before and after eight further calls, and the peak between, in MiB; of the rank that grew most (threads and ranks of one process see all of it).',
    table(
      [
        'transport',
        'ranks',
        'held, ms (in)',
        'on a core, ms',
        'longest gap, ms',
        'memory before',
        'after',
        'peak',
      ],
      rows,
    ),
  ];
}

export function formatBytes(bytes) {
  if (bytes >= 2 ** 20) {
    return `${bytes / 2 ** 20} MiB`;
  }
  return bytes >= 1024 ? `${bytes / 1024} KiB` : `${bytes} B`;
}

/** The time of a cell in microseconds, best / median. */
export function latencyOf({ minMs, ms }) {
  return `${(minMs * 1000).toFixed(0)} / ${(ms * 1000).toFixed(0)}`;
}

/** The bus bandwidth of a cell in GiB/s, best / median. */
export function rateOf({ minMs, ms, busGiBps }) {
  return `${formatRate((busGiBps * ms) / minMs)} / ${formatRate(busGiBps)}`;
}

function formatRate(rate) {
  return rate >= 1 ? rate.toFixed(2) : rate.toPrecision(2);
}

function groupBy(list, keyOf) {
  const groups = new Map();
  for (const item of list) {
    const key = keyOf(item);
    groups.set(key, [...(groups.get(key) ?? []), item]);
  }
  return [...groups.keys()].sort().map((key) => groups.get(key));
}
