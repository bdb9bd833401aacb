// Bus bandwidth of the process groups, each transport, against Gloo, Open MPI and plain sockets in
// one interleaved run: a table, a plot and JSON. The whole run takes some minutes.
// Usage: node bench/collectives.mjs [--quick] [--ops all-gather,all-reduce] [--sizes 4,1KiB,64MiB]
//   [--ranks 2,4] [--transports memory,ws] [--rivals gloo,openmpi,net] [--rounds N]
//   [--wire f16,int8: our transports compressed, too]
//   [--sample-ms 10: repeats a short call for so long] [--no-probes] [--report FILE.md]
//   [--cpu-prof FOLDER: profiles of our ranks]

import { randomBytes } from 'node:crypto';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { CONTENDERS, chooseContenders } from './collectives/contenders.mjs';
import { measureAll, SAMPLE_MS } from './collectives/measure.mjs';
import { OPERATIONS } from './collectives/operations.mjs';
import { drawPlot } from './collectives/plot.mjs';
import { reportOf } from './collectives/report.mjs';

const KIB = 1024;
const POWERS_OF_4 = Array.from({ length: 10 }, (_, i) => KIB * 4 ** i); // to 256 MiB
const FULL = { sizes: [4, ...POWERS_OF_4], rounds: 7 };
const QUICK = { sizes: [4, 64 * KIB, 1024 * KIB, 16 * 1024 * KIB], rounds: 5 };
const UNITS = { '': 1, B: 1, KiB: KIB, MiB: KIB ** 2 };

const ours = Object.keys(CONTENDERS).filter((name) => !CONTENDERS[name].isRival);
const rivals = Object.keys(CONTENDERS).filter((name) => CONTENDERS[name].isRival);
const { values: flags } = parseArgs({
  options: {
    quick: { type: 'boolean', default: false },
    ops: { type: 'string', default: Object.keys(OPERATIONS).join(',') },
    sizes: { type: 'string' },
    ranks: { type: 'string', default: '2,4' },
    transports: { type: 'string', default: ours.join(',') },
    rivals: { type: 'string', default: rivals.join(',') },
    wire: { type: 'string', default: '' },
    rounds: { type: 'string' },
    'sample-ms': { type: 'string', default: `${SAMPLE_MS}` },
    'cpu-prof': { type: 'string' },
    'no-probes': { type: 'boolean', default: false },
    report: { type: 'string' },
  },
});
const listOf = (text) => text.split(',').filter((word) => word !== '');
const scale = flags.quick ? QUICK : FULL;
const folder = mkdtempSync(join(os.tmpdir(), 'shardweave-bench-'));
try {
  const start = { date: new Date(), load: os.loadavg() };
  const measured = await measureAll({
    contenders: chooseContenders(
      [...listOf(flags.transports), ...listOf(flags.rivals)],
      listOf(flags.wire),
    ),
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
  const run = {
    date: start.date.toISOString().slice(0, 10),
    minutes: (Date.now() - start.date) / 60_000,
    command: `node bench/collectives.mjs ${process.argv.slice(2).join(' ')}`.trim(),
    machine: `${os.availableParallelism()} cores of ${os.cpus()[0].model}, ${Math.round(os.totalmem() / 2 ** 30)} GiB, ${os.type()} ${os.release()}, Node ${process.version}`,
    cores: os.availableParallelism(),
    load: { start: start.load, end: os.loadavg() },
    ...measured,
  };
  if (flags.report === undefined) console.log(reportOf(run, undefined));
  else await writeReport(run, flags.report);
} finally {
  rmSync(folder, { recursive: true, force: true });
}

async function writeReport(run, path) {
  const base = path.replace(/\.md$/, '');
  mkdirSync(dirname(path), { recursive: true });
  const hasPlot = run.cells.some(({ size, error }) => size > 4 && error === undefined);
  const plot = hasPlot ? `${base}.svg` : undefined;
  if (hasPlot) writeFileSync(plot, await drawPlot(run));
  writeFileSync(`${base}.json`, `${JSON.stringify(run, undefined, 1)}\n`);
  const text = reportOf(run, plot);
  writeFileSync(`${base}.md`, text);
  console.log(text);
}

function operationOf(name) {
  if (OPERATIONS[name] === undefined) {
    throw new Error(`--ops: expected among ${Object.keys(OPERATIONS).join(', ')}, got ${name}`);
  }
  return name;
}

function bytesOf(text) {
  const [, digits, unit] = /^(\d+)\s*(|B|KiB|MiB)$/.exec(text) ?? [];
  const bytes = Number(digits) * UNITS[unit];
  if (!(bytes >= 4 && bytes % 4 === 0)) {
    throw new Error(`--sizes: expected whole f32 elements such as 4 or 64MiB, got ${text}`);
  }
  return bytes;
}
