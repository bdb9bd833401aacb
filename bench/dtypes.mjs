// Sums over ranks by @shardweave/dtypes: in WebAssembly over copies, in place in a memory that
// threads share, and by a loop over Float32Arrays. It runs in one process with contenders in turn,
// and reports best and median. It needs the built packages.
// Usage: node bench/dtypes.mjs [--rounds 20] [--report FILE]

import { byteSize, IN_PLACE_SCRATCH_BYTES, RankSum } from '../packages/dtypes/dist/index.js';
import { flagsOf } from './figures/flags.mjs';
import { publish } from './figures/publish.mjs';
import { endRecord, headOf, startRecord, timesOf } from './figures/record.mjs';
import { table } from './figures/table.mjs';

const MIB = 2 ** 20;
const NUM_PARTS = 2;
const PART_BYTES = 4 * MIB;
const DTYPES = ['f32', 'bf16', 'f16'];
const WARM_UP_ROUNDS = 3; // until the code is compiled
const PAGE_BYTES = 64 * 1024;

const flags = flagsOf({ rounds: '20', report: undefined });
const rounds = Number(flags.rounds);
const record = await startRecord('bench/dtypes.mjs');

const pages = Math.ceil(((NUM_PARTS + 1) * PART_BYTES + IN_PLACE_SCRATCH_BYTES) / PAGE_BYTES) + 1;
const memory = new WebAssembly.Memory({ initial: pages, maximum: 65536, shared: true });
const copying = await RankSum.create();
const inPlace = await RankSum.create({
  memory,
  holds: (buffer) => buffer === memory.buffer,
  scratch: (NUM_PARTS + 1) * PART_BYTES,
});
const views = (buffer) =>
  Array.from(
    { length: NUM_PARTS + 1 },
    (_, i) => new Uint8Array(buffer, i * PART_BYTES, PART_BYTES),
  );
const own = views(new ArrayBuffer((NUM_PARTS + 1) * PART_BYTES));
const shared = views(memory.buffer);
const floats = own.map(
  ({ buffer, byteOffset }) => new Float32Array(buffer, byteOffset, PART_BYTES / 4),
);
const contenders = {
  wasm: (dtype) => copying.reduce(own.slice(0, NUM_PARTS), own.at(-1), { dtype, op: 'sum' }),
  'wasm, in place': (dtype) =>
    inPlace.reduce(shared.slice(0, NUM_PARTS), shared.at(-1), { dtype, op: 'sum' }),
  'a JavaScript loop': () => addInLoop(...floats),
};

const rows = [];
for (const dtype of DTYPES) {
  rows.push({ dtype, times: await measure(dtype) });
}
await endRecord(record);
Object.assign(record, {
  rounds,
  numParts: NUM_PARTS,
  inputBytes: NUM_PARTS * PART_BYTES,
  contenders: Object.keys(contenders),
  rows,
});
publish(flags.report, report(), record);

/** Measures in turns: each round runs every contender once. */
async function measure(dtype) {
  fill(dtype);
  const samples = Object.fromEntries(Object.keys(contenders).map((name) => [name, []]));
  for (let round = -WARM_UP_ROUNDS; round < rounds; round++) {
    for (const [name, run] of Object.entries(contenders)) {
      if (name === 'a JavaScript loop' && dtype !== 'f32') {
        continue;
      }
      const start = performance.now();
      await run(dtype);
      if (round >= 0) {
        samples[name].push(performance.now() - start);
      }
    }
  }
  const measured = Object.entries(samples).filter(([, list]) => list.length > 0);
  return Object.fromEntries(measured.map(([name, list]) => [name, timesOf(list)]));
}

function addInLoop(a, b, sum) {
  for (let i = 0; i < sum.length; i++) {
    sum[i] = a[i] + b[i];
  }
}

/** Fills buffers with ones, so that nothing overflows and no value is slow to add. */
function fill(dtype) {
  const bits = { f32: 0x3f800000, bf16: 0x3f80, f16: 0x3c00 }[dtype];
  const Words = byteSize(dtype) === 4 ? Uint32Array : Uint16Array;
  for (const { buffer, byteOffset, byteLength } of [...own, ...shared]) {
    new Words(buffer, byteOffset, byteLength / byteSize(dtype)).fill(bits);
  }
}

function report() {
  const cell = ({ best, median }) =>
    [best, median].map((ms) => (record.inputBytes / 2 ** 30 / (ms / 1000)).toFixed(2)).join(' / ');
  return [
    headOf('Sums of parts', record),
    `GiB/s of input, best / median of ${rounds} interleaved rounds: ${NUM_PARTS} parts of ${PART_BYTES / MIB} MiB into a third array, on one core.`,
    table(
      ['', ...record.contenders],
      rows.map(({ dtype, times }) => [
        dtype,
        ...record.contenders.map((name) => (times[name] ? cell(times[name]) : '-')),
      ]),
    ),
  ].join('\n\n');
}
