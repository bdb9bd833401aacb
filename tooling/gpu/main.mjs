// What run.sh starts: it chooses a driver, runs the parts, and writes report.md and report.json
// beside the rows. Everything else goes into a folder that is removed at the end.
//   run.sh [OUT] [--only NAME,...] [--scale full|tiny] [--python PYTHON] [--list]
// A second run with the same OUT adds to what is there.

import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism, tmpdir, totalmem } from 'node:os';
import { join, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { appendRow, readRows } from '../../bench/figures/rows.mjs';
import { chooseDriver } from './choose-driver.mjs';
import { listParts, PARTS, SOFTWARE_SECONDS } from './parts.mjs';
import { renderReport } from './report.mjs';
import { runParts } from './run-parts.mjs';

const { values: flags, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    only: { type: 'string' },
    scale: { type: 'string' },
    python: { type: 'string', default: 'python3' },
    list: { type: 'boolean', default: false },
  },
});
if (flags.list) {
  console.log(listParts());
} else {
  await run();
}

async function run() {
  const parts = chosenParts();
  const out = resolve(positionals[0] ?? 'report');
  mkdirSync(out, { recursive: true });
  const scratch = mkdtempSync(join(tmpdir(), 'shardweave-gpu-'));
  const rows = join(out, 'rows.jsonl');
  const ending = new AbortController();
  for (const signal of ['SIGINT', 'SIGTERM']) {
    process.once(signal, () => ending.abort());
  }
  const driver = chooseDriver(scratch);
  const isHardware = driver.adapters.some(({ isSoftware }) => !isSoftware);
  appendRow(rows, { machine: machineOf(driver) });
  const write = () => {
    const report = readRows(rows);
    writeFileSync(join(out, 'report.json'), `${JSON.stringify(report, null, 1)}\n`);
    writeFileSync(join(out, 'report.md'), renderReport(report));
  };
  write();
  const isTiny = (flags.scale ?? (isHardware ? 'full' : 'tiny')) === 'tiny';
  const isOk = await runParts(
    isHardware ? parts : parts.map((part) => ({ ...part, limit: SOFTWARE_SECONDS })),
    {
      ...{ rows, scratch, signal: ending.signal },
      env: { SHARDWEAVE_CACHE: join(scratch, 'cache'), ...driver.environment },
      where: { isTiny, python: flags.python },
      onEnd: (name, { ended, seconds }) => {
        console.log(
          `${name}: ${ended === 0 ? 'ok' : `ended by ${ended}`}, ${seconds.toFixed(1)} s`,
        );
        write();
      },
    },
  );
  rmSync(scratch, { recursive: true, force: true });
  console.log(`wrote report.md, report.json and rows.jsonl in ${out}`);
  process.exitCode = isOk ? 0 : 1;
}

function chosenParts() {
  const names = flags.only?.split(',') ?? PARTS.map(({ name }) => name);
  const unknown = names.filter((one) => !PARTS.some(({ name }) => name === one));
  if (unknown.length > 0) {
    console.error(
      `--only: expected some of these parts, got ${unknown.join(', ')}.\n${listParts()}`,
    );
    process.exit(2);
  }
  return PARTS.filter(({ name }) => names.includes(name));
}

function machineOf({ adapters, tried }) {
  const commit = new URL('../../../commit', import.meta.url);
  return {
    date: new Date().toISOString(),
    commit: existsSync(commit) ? readFileSync(commit, 'utf8').trim() : 'of a working tree',
    node: process.versions.node,
    cores: availableParallelism(),
    memoryBytes: totalmem(),
    adapters,
    tried,
  };
}
