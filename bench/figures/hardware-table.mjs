// The table of a GPU beside PyTorch: a row for each task, from bench/hardware.mjs's rows.

import { table } from './table.mjs';

const OURS = 'shardweave';

/**
 * @param {readonly object[]} rows those with `times` are tasks
 * @param {{ peak: number }} options the chip's f32 rate without matrix units, TFLOP/s
 */
export function hardwareTable(rows, { peak }) {
  const tasks = rows.filter(({ times }) => times !== undefined);
  const keys = [...new Set(tasks.flatMap(({ times }) => Object.keys(times)))];
  const others = keys.filter((key) => key !== OURS);
  const clocks = tasks.some((row) => row.clocks !== undefined);
  const head = ['what, ms', ...keys, 'rate', ...others.map((key) => `over ${key}`)];
  const body = tasks.map((row) => [
    row.name,
    ...keys.map((key) => row.times[key]?.median.toFixed(2) ?? '-'),
    rateOf(row, (row.times[OURS] ?? row.times[keys[0]])?.median),
    ...others.map((key) => ratio(row.times[OURS]?.median, row.times[key]?.median)),
    ...(clocks ? [row.clocks ?? ''] : []),
  ]);
  const tiles = rows.filter((row) => row.tiles !== undefined).map(tilesLine);
  const missing = rows.filter((row) => row.missing !== undefined);
  return [
    ...missing.map(({ engine, missing: why }) => `- ${engine} is left out: ${why}`),
    ...tiles,
    ...(tasks.length === 0 ? [] : [table([...head, ...(clocks ? ['clocks'] : [])], body)]),
    ...overall(tasks, peak),
  ].join('\n\n');
}

function tilesLine({ name, seconds, tiles }) {
  const classes = Object.entries(tiles).map(([of, tile]) => `${of}: ${tile}`);
  return `- ${name}, ${seconds.toFixed(1)} s: ${classes.join('; ')}`;
}

function rateOf({ flop, bytes }, ms) {
  if (ms === undefined) {
    return '-';
  }
  if (bytes !== undefined) {
    return `${((2 * bytes) / ms / 1e6).toFixed(0)} GB/s`;
  }
  return flop === undefined ? '' : `${(flop / ms / 1e9).toFixed(2)} TFLOP/s`;
}

/** The rate of all products of a step of GPT-2 together, and its share of the chip's f32 rate. */
function overall(tasks, peak) {
  return [...new Set(tasks.map(({ precision }) => precision))].flatMap((precision) => {
    const all = tasks.filter(
      (row) => row.perStep !== undefined && row.precision === precision && row.times[OURS],
    );
    if (all.length === 0) {
      return [];
    }
    const flop = all.reduce((sum, row) => sum + row.flop * row.perStep, 0);
    const ms = all.reduce((sum, row) => sum + row.times[OURS].median * row.perStep, 0);
    const rate = flop / ms / 1e9;
    return [
      `Products of a step of GPT-2 in ${precision}, ${all.length} of 15: ${ms.toFixed(1)} ms, ${rate.toFixed(2)} TFLOP/s, ${((100 * rate) / peak).toFixed(0)} % of ${peak}.`,
    ];
  });
}

function ratio(ours, theirs) {
  return ours === undefined || theirs === undefined ? '-' : (ours / theirs).toFixed(2);
}
