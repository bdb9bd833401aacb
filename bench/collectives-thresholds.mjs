// Measures the constants of the collectives package that are chosen by measurement. All values of
// one constant are measured in turns within one run. See bench/collectives/thresholds.mjs.

import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import os from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { chooseContenders } from './collectives/contenders.mjs';
import { measureAll, SAMPLE_MS } from './collectives/measure.mjs';
import { THRESHOLDS } from './collectives/thresholds.mjs';
import { bundleVariant } from './collectives/variants.mjs';
import { publish } from './figures/publish.mjs';
import { endRecord, headOf, startRecord } from './figures/record.mjs';

const USAGE = `Usage: node bench/collectives-thresholds.mjs [options]
  --only A,B       these constants; default: ${THRESHOLDS.map(({ constant }) => constant).join(', ')}
  --rounds N       samples of each cell; default 9
  --report FILE    writes the tables there, too
  --help`;

const flags = readFlags();
const log = (line) => process.stderr.write(`${line}\n`);
const folder = mkdtempSync(join(os.tmpdir(), 'shardweave-thresholds-'));
try {
  const chosen = flags.only?.split(',') ?? THRESHOLDS.map(({ constant }) => constant);
  const record = await startRecord('bench/collectives-thresholds.mjs');
  const tables = [];
  record.cells = {};
  for (const name of chosen) {
    const threshold = THRESHOLDS.find(({ constant }) => constant === name);
    if (threshold === undefined) {
      fail(`--only: no constant ${name}`);
    }
    log(name);
    const cells = await sweep(threshold);
    record.cells[name] = cells;
    tables.push(tableOf(threshold, cells));
  }
  await endRecord(record);
  const text = [
    headOf('Thresholds of collectives', record),
    'Each cell: the median time of a call in microseconds, and behind it the median CPU time of its busiest ' +
      'process (of all ranks, over shm and memory). All values of a constant stay open and take turns in every round.',
    ...tables,
  ].join('\n\n');
  publish(flags.report, text, record);
} finally {
  rmSync(folder, { recursive: true, force: true });
}

async function sweep({ constant, file, values, transports, ...cells }) {
  const contenders = [];
  for (const contender of chooseContenders(transports, { wires: [] })) {
    for (const [label, value] of Object.entries(values)) {
      const transport = contender.adapter;
      const bundle = await bundleVariant({ folder, file, constant, value, transport });
      const name = `${contender.name} ${label}`.replaceAll(' ', '-');
      contenders.push({ ...contender, name, transport: contender.name, label, bundle });
    }
  }
  const { cells: measured } = await measureAll({
    ...cells,
    contenders,
    rounds: Number(flags.rounds),
    sampleMs: SAMPLE_MS,
    hasProbes: false,
    folder,
    nodeArgs: [],
    secret: randomBytes(16).toString('hex'),
    log,
  });
  return measured.map((cell) => ({
    ...cell,
    ...contenders.find(({ name }) => name === cell.contender),
  }));
}

/** One row for each transport, world size, operation and size, and one column for each value. */
function tableOf({ constant, values }, cells) {
  const labels = Object.keys(values);
  const placeOf = ({ transport, worldSize, operation, size }) =>
    `${transport}, ${worldSize} ranks, ${operation}, ${sizeText(size)}`;
  const rows = [...new Set(cells.map(placeOf))].map((place) => {
    const shown = labels.map((label) => {
      const cell = cells.find((other) => other.label === label && placeOf(other) === place);
      return cell?.ms === undefined ? '-' : `${us(cell.ms)} (${us(cell.cpuMs)})`;
    });
    return `| ${[place, ...shown].join(' | ')} |`;
  });
  const head = `| ${['cell', ...labels].join(' | ')} |`;
  return [`## ${constant}`, '', head, `|${' --- |'.repeat(labels.length + 1)}`, ...rows].join('\n');
}

function us(ms) {
  return (ms * 1000).toFixed(0);
}

function sizeText(size) {
  return size >= 2 ** 20
    ? `${size / 2 ** 20} MiB`
    : size >= 1024
      ? `${size / 1024} KiB`
      : `${size} B`;
}

function readFlags() {
  try {
    const { values } = parseArgs({
      options: {
        only: { type: 'string' },
        rounds: { type: 'string', default: '9' },
        report: { type: 'string' },
        help: { type: 'boolean', default: false },
      },
    });
    if (values.help) {
      console.log(USAGE);
      process.exit(0);
    }
    return values;
  } catch (error) {
    return fail(error.message);
  }
}

function fail(complaint) {
  console.error(`${complaint}\n${USAGE}`);
  process.exit(2);
}
