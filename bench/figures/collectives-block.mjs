// The measured tables in the README of @shardweave/collectives.
import { OPERATIONS } from '../collectives/operations.mjs';
import { formatBytes, latencyOf, ranksLabel, rateOf } from '../collectives/report.mjs';
import { loadOf } from './record.mjs';
import { table } from './table.mjs';

const MIB = 2 ** 20;
const SHOWN_OPERATIONS = ['all-gather', 'reduce-scatter', 'all-reduce'];
const SHOWN_SIZES = [64 * 1024, MIB, 16 * MIB, 256 * MIB];

/** @param run a report of bench/collectives.mjs @param {string} link to its Markdown */
export function collectivesBlock(run, link) {
  const names = run.contenders.map(({ name }) => name);
  const worldSizes = [...new Set(run.cells.map(({ worldSize }) => worldSize))];
  return [
    `Bus bandwidth in GiB/s as nccl-tests defines it, and the latency of one element in microseconds, f32; best / median of interleaved rounds in one run of ${run.date} on ${run.machine}. ${loadOf(run)} All cells, the plot and the command are in the [report](${link}). \`net\` are plain TCP sockets in the same pattern, \`atomics\` threads that only wait and copy, \`gloo\` is PyTorch's, \`openmpi\` is native Open MPI over shared memory.`,
    ...worldSizes.flatMap((worldSize) => [
      `${ranksLabel(run, worldSize)}:`,
      table(['', ...names], rowsOf(run, worldSize, names)),
    ]),
  ].join('\n\n');
}

/**
 * What TLS costs, measured in the same turns.
 * @param run as above
 * @param {string} link to its Markdown
 */
export function tlsBlock(run, link) {
  const rows = run.cells
    .filter(({ contender }) => contender === 'ws')
    .map((plain) => {
      const isSame = ({ size, operation }) => size === plain.size && operation === plain.operation;
      const tls = run.cells.find((cell) => cell.contender === 'ws-tls' && isSame(cell));
      const ratios = [tls.minMs / plain.minMs, tls.ms / plain.ms];
      const title = `${OPERATIONS[plain.operation].title}, ${formatBytes(plain.size)}`;
      return [title, rateOf(plain), rateOf(tls), ratios.map((x) => x.toFixed(1)).join(' / ')];
    });
  return [
    table(['GiB/s', 'in the clear', 'TLS', 'times as long'], rows),
    `${run.cells[0].worldSize} processes over the same loopback address, best / median of up to ${Math.max(...run.cells.map(({ rounds }) => rounds))} rounds in turn, ${run.date}, ${run.machine}. ${loadOf(run)} ([report](${link}))`,
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
    ...row('All-reduce, 4 B, us', 'all-reduce', 4, latencyOf),
    ...SHOWN_OPERATIONS.flatMap((operation) =>
      SHOWN_SIZES.flatMap((size) =>
        row(`${OPERATIONS[operation].title}, ${formatBytes(size)}`, operation, size, rateOf),
      ),
    ),
  ];
}
