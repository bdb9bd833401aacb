// Bus bandwidth of the process groups over each transport, beside Gloo, Open MPI and plain sockets,
// in one interleaved run. It gives a table, a plot and JSON, and takes some minutes.

import { randomBytes } from 'node:crypto';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { CONTENDERS, chooseContenders } from './collectives/contenders.mjs';
import { measureAll, SAMPLE_MS } from './collectives/measure.mjs';
import { OPERATIONS } from './collectives/operations.mjs';
import { reportOf } from './collectives/report.mjs';
import { publish } from './figures/publish.mjs';
import { endRecord, startRecord } from './figures/record.mjs';

const KIB = 1024;
const POWERS_OF_4 = Array.from({ length: 10 }, (_, i) => KIB * 4 ** i); // up to 256 MiB
const FULL = { sizes: [4, ...POWERS_OF_4], rounds: 7 };
const QUICK = { sizes: [4, 64 * KIB, 1024 * KIB, 16 * 1024 * KIB], rounds: 5 };
const UNITS = { '': 1, B: 1, KiB: KIB, MiB: KIB ** 2 };

const ours = Object.keys(CONTENDERS).filter((name) => !CONTENDERS[name].isRival);
const usual = ours.filter((name) => !CONTENDERS[name].isExtra);
const rivals = Object.keys(CONTENDERS).filter((name) => CONTENDERS[name].isRival);
const USAGE = `Usage: node bench/collectives.mjs [options]
  --quick            four sizes, fewer rounds
  --ops A,B          of ${Object.keys(OPERATIONS).join(', ')}; default: all
  --sizes A,B        such as 4,1KiB,64MiB; default: 4 bytes, and 1 KiB to 256 MiB by fours
  --ranks A,B        world sizes; default: 2,4
  --transports A,B   of ${ours.join(', ')}; default: ${usual.join(', ')}
  --rivals A,B       of ${rivals.join(', ')}; default: all
  --wire A,B         our transports compressed, too: f16, bf16, int8
  --beside DIR       another checkout, built: our transports as it has them, too, in turn with these
  --rounds N         samples of each cell; default: ${FULL.rounds}, or ${QUICK.rounds} with --quick
  --sample-ms N      repeats a short call for so long; default: ${SAMPLE_MS}
  --no-probes        without the event loop's turns and the memory
  --no-plot          without a plot beside the report
  --report FILE.md   writes the report, its plot and its JSON there
  --cpu-prof FOLDER  profiles of our ranks
  --help`;
const flags = readFlags();
const listOf = (text) => text.split(',').filter((word) => word !== '');
const scale = flags.quick ? QUICK : FULL;
const folder = mkdtempSync(join(os.tmpdir(), 'shardweave-bench-'));
try {
  const record = await startRecord('bench/collectives.mjs');
  const startMs = performance.now();
  const measured = await measureAll({
    contenders: chooseContenders([...listOf(flags.transports), ...listOf(flags.rivals)], {
      wires: listOf(flags.wire),
      beside: flags.beside && resolve(flags.beside),
    }),
    operations: listOf(flags.ops).map(operationOf),
    sizes: flags.sizes ? listOf(flags.sizes).map(bytesOf) : scale.sizes,
    worldSizes: listOf(flags.ranks).map(Number),
    rounds: Number(flags.rounds ?? scale.rounds),
    sampleMs: Number(flags['sample-ms']),
    hasProbes: !flags['no-probes'],
    folder,
    nodeArgs: flags['cpu-prof']
      ? ['--cpu-prof', `--cpu-prof-dir=${resolve(flags['cpu-prof'])}`]
      : [],
    secret: randomBytes(16).toString('hex'),
    log: (line) => process.stderr.write(`${line}\n`),
  });
  await endRecord(record);
  const run = { ...record, minutes: (performance.now() - startMs) / 60_000, ...measured };
  const isDrawn = flags.report !== undefined && !flags['no-plot'];
  const plot = isDrawn ? await plotOf(run, flags.report) : undefined;
  publish(flags.report, reportOf(run, plot), run);
} finally {
  rmSync(folder, { recursive: true, force: true });
}

/**
 * Draws the plot beside the report and returns its path; undefined where there is nothing to draw.
 */
async function plotOf(run, path) {
  if (!run.cells.some(({ size, error }) => size > 4 && error === undefined)) {
    return undefined;
  }
  const { drawPlot } = await import('./collectives/plot.mjs'); // loading takes a second
  const plot = path.replace(/(\.md)?$/, '.svg');
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(plot, await drawPlot(run));
  return plot;
}

function operationOf(name) {
  if (OPERATIONS[name] === undefined) {
    fail(`--ops: expected among ${Object.keys(OPERATIONS).join(', ')}, got ${name}`);
  }
  return name;
}

function readFlags() {
  try {
    const { values } = parseArgs({
      options: {
        quick: { type: 'boolean', default: false },
        ops: { type: 'string', default: Object.keys(OPERATIONS).join(',') },
        sizes: { type: 'string' },
        ranks: { type: 'string', default: '2,4' },
        transports: { type: 'string', default: usual.join(',') },
        rivals: { type: 'string', default: rivals.join(',') },
        wire: { type: 'string', default: '' },
        beside: { type: 'string' },
        rounds: { type: 'string' },
        'sample-ms': { type: 'string', default: `${SAMPLE_MS}` },
        'cpu-prof': { type: 'string' },
        'no-probes': { type: 'boolean', default: false },
        'no-plot': { type: 'boolean', default: false },
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

function bytesOf(text) {
  const [, digits, unit] = /^(\d+)\s*(|B|KiB|MiB)$/.exec(text) ?? [];
  const bytes = Number(digits) * UNITS[unit];
  if (!(bytes >= 4 && bytes % 4 === 0)) {
    fail(`--sizes: expected whole f32 elements such as 4 or 64MiB, got ${text}`);
  }
  return bytes;
}
