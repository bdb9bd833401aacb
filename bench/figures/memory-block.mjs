// The table of bytes in the README of @shardweave/fsdp: measured beside the formulas of
// docs/memory-model.md.
import { addressOf } from './address.mjs';
import { table } from './table.mjs';

const ROWS = [
  ['idle and after a step: parameter', '4 S', 'idle', 'parameter'],
  ['idle and after a step: optimizer', '8 S', 'idle', 'optimizer'],
  ['idle and after a step: all else', '0', 'idle', 'gathered'],
  ['after forward: gathered, resharding', 'e W s(root)', 'afterForward', 'gathered'],
  ['after forward: gathered, not resharding', 'e W S', 'afterForward', 'gathered', false],
  ['after forward: activation', 'sum of what is saved', 'afterForward', 'activation'],
  ['peak: gathered, resharding', 'e W (s(root) + s(block))', 'peak', 'gathered'],
  ['peak: gathered, not resharding', 'e W S', 'peak', 'gathered', false],
  ['peak: gradient', 'max(r W (s(root) + s(block)), 4 S)', 'peak', 'gradient'],
  ['peak: activation', 'largest of five places', 'peak', 'activation'],
  ['peak: staging', 'max(e, r) s(largest)', 'peak', 'staging'],
];

/** @param run a report of bench/fsdp-memory.mjs */
export function memoryBlock({ shape, cells, differences }) {
  const { vocab, seq, width, layers, rows } = shape;
  const verdict =
    differences.length === 0
      ? 'every byte of every rank equals its formula'
      : `NOT all bytes equal the formulas: ${differences.length} differ`;
  const precisions = [...new Set(cells.map(({ precision }) => precision))];
  return [
    `KiB of rank 0 in training steps of a GPT-2 of ${layers} blocks, width ${width}, vocabulary ${vocab}, ${rows} x ${seq} tokens a rank, AdamW. Symbols and what differs at W = 1: [memory model](${addressOf('docs/memory-model.md')}). In the run of \`node bench/fsdp-memory.mjs\` behind this ${verdict}.`,
    ...precisions.flatMap((precision) => [
      `${precision}:`,
      tableOf(cells.filter((cell) => cell.precision === precision)),
    ]),
  ].join('\n\n');
}

function tableOf(cells) {
  const worldSizes = [...new Set(cells.map(({ worldSize }) => worldSize))];
  const kib = (worldSize, phase, tag, isResharding) => {
    const isMeant = (cell) => cell.worldSize === worldSize && cell.isResharding === isResharding;
    return `${cells.find(isMeant).phases[phase][tag] / 1024}`.replace(/(\.\d\d)\d+$/, '$1');
  };
  return table(
    ['', 'formula', ...worldSizes.map((worldSize) => `W = ${worldSize}`)],
    ROWS.map(([title, formula, phase, tag, isResharding = true]) => [
      title,
      formula,
      ...worldSizes.map((worldSize) => kib(worldSize, phase, tag, isResharding)),
    ]),
  );
}
