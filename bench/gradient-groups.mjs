// What a step in groups of rows costs. One model is trained over memory, by ddp and fsdp on 1, 2
// and 4 ranks, plain and in 8 groups, whole commands in turns with few and with more steps; a step
// is their difference, in processor time of the process, which is all of the job. It needs the
// built packages.
// Usage: node bench/gradient-groups.mjs [--model nano] [--groups 8] [--ranks 1,2,4]
//   [--few 10] [--many 50] [--rounds 3] [--report FILE]

import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { secondsOf } from './figures/command-time.mjs';
import { flagsOf } from './figures/flags.mjs';
import { publish } from './figures/publish.mjs';
import { endRecord, headOf, startRecord, timesOf } from './figures/record.mjs';
import { table } from './figures/table.mjs';

const flags = flagsOf({
  model: 'nano',
  groups: '8',
  ranks: '1,2,4',
  few: '10',
  many: '50',
  rounds: '3',
  report: undefined,
});
const record = await startRecord('bench/gradient-groups.mjs');
const scratch = join(import.meta.dirname, '.shardweave');
mkdirSync(scratch, { recursive: true });
const folder = mkdtempSync(join(scratch, 'groups-'));
const cells = ['ddp', 'fsdp'].flatMap((strategy) =>
  flags.ranks
    .split(',')
    .flatMap((ranks) =>
      [undefined, flags.groups].map((groups) => ({ strategy, ranks, groups, samples: [] })),
    ),
);
try {
  for (let round = 0; round < Number(flags.rounds); round++) {
    for (const cell of cells) {
      const few = await milliseconds(cell, flags.few);
      const many = await milliseconds(cell, flags.many);
      cell.samples.push((many - few) / (Number(flags.many) - Number(flags.few)));
    }
  }
} finally {
  rmSync(folder, { recursive: true, force: true });
}
await endRecord(record);
Object.assign(record, { flags, cells });
publish(flags.report, report(), record);

/** The milliseconds of processor time that a command takes, all ranks and threads in it. */
async function milliseconds({ strategy, ranks, groups }, steps) {
  const args = ['train', '--model', flags.model, '--device', 'cpu', '--threads', '1'];
  args.push('--strategy', strategy, '--ranks', ranks, '--steps', steps, '--products', 'wasm');
  args.push(
    '--transport',
    'memory',
    ...(groups === undefined ? [] : ['--gradient-groups', groups]),
  );
  return 1000 * (await secondsOf(args, folder));
}

function report() {
  const rows = cells
    .filter(({ groups }) => groups === undefined)
    .map(({ strategy, ranks, samples }) => {
      const plain = timesOf(samples).median;
      const other = cells.find(
        (cell) => cell.strategy === strategy && cell.ranks === ranks && cell.groups !== undefined,
      );
      const grouped = timesOf(other.samples).median;
      const ratio = (grouped / plain).toFixed(2);
      return [strategy, ranks, plain.toFixed(1), grouped.toFixed(1), ratio];
    });
  const head = ['strategy', 'ranks', 'plain, ms a step', `${flags.groups} groups, ms`, 'of plain'];
  return [
    headOf('A step in groups of rows', record),
    `Preset ${flags.model} with its own batch, one thread a rank, wasm products, over memory. Processor time of the whole job, medians of ${flags.rounds} differences between commands of ${flags.many} and ${flags.few} steps, in turns.`,
    table(head, rows),
  ].join('\n\n');
}
