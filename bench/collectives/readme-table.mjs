// The measured table of the README of @shardweave/collectives, out of a report's JSON.
// Usage: node bench/collectives/readme-table.mjs REPORT.json [--write README.md]
// Without --write it is printed; with it, it replaces what lies between the README's marks.
import { readFileSync, writeFileSync } from 'node:fs';
import { dirname, relative } from 'node:path';
import { parseArgs } from 'node:util';
import { OPERATIONS } from './operations.mjs';
import { formatBytes, formatRate, ranksLabel, table } from './report.mjs';

const MIB = 2 ** 20;
const SHOWN_OPERATIONS = ['all-gather', 'reduce-scatter', 'all-reduce'];
const SHOWN_SIZES = [64 * 1024, MIB, 16 * MIB, 256 * MIB];
const BEGIN = '<!-- measured: begin, by bench/collectives/readme-table.mjs -->';
const END = '<!-- measured: end -->';

const { values: flags, positionals } = parseArgs({
  allowPositionals: true,
  options: { write: { type: 'string' } },
});
const [path] = positionals;
const run = JSON.parse(readFileSync(path, 'utf8'));
const text = markdownOf(run);
if (flags.write === undefined) console.log(text);
else replaceBetweenMarks(flags.write, text);

function markdownOf(run) {
  const names = run.contenders.map(({ name }) => name);
  const report = path.replace(/\.json$/, '.md');
  const link = relative(dirname(flags.write ?? 'packages/collectives/README.md'), report);
  const worldSizes = [...new Set(run.cells.map(({ worldSize }) => worldSize))];
  return [
    `Bus bandwidth in GiB/s as nccl-tests defines it, and the latency of one element in microseconds; f32, medians of interleaved rounds in one run on ${run.machine} ([all cells, the plot and the command](${link})). \`net\` are plain TCP sockets in the same pattern, \`atomics\` threads that only wait and copy, \`gloo\` is PyTorch's, \`openmpi\` is native Open MPI over shared memory.`,
    ...worldSizes.flatMap((worldSize) => [
      `${ranksLabel(run, worldSize)}:`,
      table(['', ...names], rowsOf(run, worldSize, names)),
    ]),
  ].join('\n\n');
}

function rowsOf(run, worldSize, names) {
  const cells = run.cells.filter((cell) => cell.worldSize === worldSize && !cell.error);
  const row = (title, operation, size, format) => {
    const ofRow = cells.filter((cell) => cell.operation === operation && cell.size === size);
    const columns = names.map((name) => ofRow.find(({ contender }) => contender === name));
    const isEmpty = ofRow.length === 0;
    return isEmpty ? [] : [[title, ...columns.map((cell) => (cell ? format(cell) : '-'))]];
  };
  return [
    ...row('All-reduce, 4 B, us', 'all-reduce', 4, ({ ms }) => (ms * 1000).toFixed(0)),
    ...SHOWN_OPERATIONS.flatMap((operation) =>
      SHOWN_SIZES.flatMap((size) => {
        const title = `${OPERATIONS[operation].title}, ${formatBytes(size)}`;
        return row(title, operation, size, ({ busGiBps }) => formatRate(busGiBps));
      }),
    ),
  ];
}

function replaceBetweenMarks(readme, text) {
  const old = readFileSync(readme, 'utf8');
  const [begin, end] = [old.indexOf(BEGIN), old.indexOf(END)];
  if (begin < 0 || end < begin) throw new Error(`${readme}: the marks are missing: ${BEGIN}`);
  writeFileSync(readme, `${old.slice(0, begin + BEGIN.length)}\n\n${text}\n\n${old.slice(end)}`);
}
