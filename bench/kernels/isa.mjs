// What a real GPU compiler makes of every kernel for hardware, on a machine without a GPU. Mesa's
// RADV compiles for an RDNA 3 chip (navi31) on its null window system and executes nothing. It
// prints registers, spills, shared memory, waves per SIMD and instructions, and ends with 1 where a
// gate fails. It says that it skips where there is no C compiler, or where the driver is not the
// one that the gates were checked with. It needs the built packages. `npm run kernels -- WORDS`
// shows the same figures beside the text of a kernel.
// Usage: node bench/kernels/isa.mjs [--only TEXT] [--report FILE]

import { flagsOf } from '../figures/flags.mjs';
import { publish } from '../figures/publish.mjs';
import { endRecord, headOf, startRecord } from '../figures/record.mjs';
import { table } from '../figures/table.mjs';
import { hardwareKernels } from './hardware-kernels.mjs';
import {
  CHECKED_DRIVER,
  compileKernels,
  LEAST_WAVES,
  MOST_OTHER,
  MULTIPLIES,
  whyNoCompiler,
} from './navi31.mjs';

const flags = flagsOf({ only: undefined, report: undefined });
const missing = whyNoCompiler();
if (missing !== undefined) {
  console.log(`isa: skipped: ${missing}`);
  process.exit(0);
}
const record = await startRecord('bench/kernels/isa.mjs');
const kernels = (await hardwareKernels()).filter(({ label }) => label.includes(flags.only ?? ''));
const { driver, kernels: rows } = compileKernels(kernels);
if (rows === undefined) {
  console.log(`isa: skipped: the gates were checked on ${CHECKED_DRIVER}, this is ${driver}`);
  process.exit(0);
}
await endRecord(record);
Object.assign(record, {
  ...{ driver, chip: 'navi31' },
  // These figures suffice to compare two reports. With --only all figures of a kernel are printed.
  kernels: rows.map(({ label, vgprs, waves, codeBytes, loop, failures }) =>
    [label, vgprs, waves, codeBytes, dualOf(loop), failures.join(', ')].join(' | '),
  ),
});
publish(flags.report, report(), record);
const failed = rows.filter(({ failures }) => failures.length > 0);
process.exit(failed.length === 0 ? 0 : 1);

function report() {
  const failing = rows.filter(({ failures }) => failures.length > 0);
  return [
    headOf('Kernels compiled for a GPU', record),
    `${driver}, for navi31; ${rows.length} kernels, ${failing.length} fail a gate: no spill, at least ${LEAST_WAVES} waves a SIMD, 128-bit loads (of 16-bit elements 64-bit ones) where rows allow, at most ${MOST_OTHER} other vector instructions for a multiply-add in loops that multiply; products of rows that no vector fits are printed and judged by the first two alone. "Loop" is the one with most multiply-adds: multiply-adds / other vector instructions / LDS instructions. Products and attention by kernel, the other families by their worst.`,
    dualIssue(),
    table(
      [
        'kernel',
        'VGPR',
        'spilled',
        'LDS',
        'waves',
        'code bytes',
        'loads (b128, b64)',
        'loop',
        'dual-issued',
        'fails',
      ],
      [...rows.filter(isListed).map(cells), ...families().map(cells)],
    ),
  ].join('\n\n');
}

/**
 * What no gate asks: RDNA 3 runs at its advertised rate only where two multiply-adds share an
 * instruction.
 */
function dualIssue() {
  const loops = rows.filter(isListed).flatMap(({ loop }) => (loop === undefined ? [] : [loop]));
  const sumOf = (key) => loops.reduce((sum, loop) => sum + loop[key], 0);
  const [dual, all] = [sumOf('dualMultiplyAdds'), sumOf('multiplyAdds')];
  const most = 50 / (1 - dual / all / 2);
  return `RDNA 3's advertised rate counts two multiply-adds for each lane and clock, which waves of 32 lanes, as these are, reach where the compiler issues them in pairs (v_dual_fmac). Of the ${all} multiply-adds in the loops of products and attention ${dual} are in such pairs, so whatever the gates say these kernels reach at most ${most.toFixed(0)} % of that rate.`;
}

function isListed({ label }) {
  return MULTIPLIES.test(label);
}

function cells(row) {
  const { loop } = row;
  return [
    row.label,
    row.vgprs,
    row.spilledVgprs + row.spilledSgprs,
    row.ldsBytes,
    row.waves,
    row.codeBytes,
    `${row.loads} (${row.load128}, ${row.load64})`,
    loop?.multiplyAdds > 0 ? `${loop.multiplyAdds} / ${loop.otherVector} / ${loop.lds}` : '-',
    dualOf(loop),
    row.failures.join(', ') || '-',
  ];
}

/** How many multiply-adds of a loop are issued in pairs, such as `0 of 512`. */
function dualOf(loop) {
  return loop?.multiplyAdds > 0 ? `${loop.dualMultiplyAdds} of ${loop.multiplyAdds}` : '-';
}

/**
 * Groups kernels by the first word of their labels. Each column has the largest value of the group,
 * and that of waves the smallest.
 */
function families() {
  const byName = new Map();
  for (const row of rows.filter((one) => !isListed(one))) {
    const [name] = row.label.split(' ');
    byName.set(name, [...(byName.get(name) ?? []), row]);
  }
  return [...byName].map(([name, members]) => {
    const most = (key) => Math.max(...members.map((row) => row[key]));
    return {
      label: `${name} (${members.length})`,
      vgprs: most('vgprs'),
      spilledVgprs: most('spilledVgprs'),
      spilledSgprs: most('spilledSgprs'),
      ldsBytes: most('ldsBytes'),
      waves: Math.min(...members.map(({ waves }) => waves)),
      codeBytes: most('codeBytes'),
      loads: most('loads'),
      load128: most('load128'),
      load64: most('load64'),
      loop: undefined,
      failures: [...new Set(members.flatMap(({ failures }) => failures))],
    };
  });
}
