// What a real GPU compiler makes of every kernel for hardware, on a machine without a GPU: Mesa's RADV
// compiles for an RDNA 3 chip (navi31) on its null window system and executes nothing. Prints registers,
// spills, shared memory, waves a SIMD and instructions, and ends with 1 where a gate fails. Skipped by name
// where the driver is not the one that the gates were checked on, or no C compiler is there. Needs the built
// packages.
// Usage: node bench/kernels/isa.mjs [--only TEXT] [--report FILE]

import { execFileSync, spawnSync } from 'node:child_process';
import {
  closeSync,
  existsSync,
  mkdtempSync,
  openSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { publish } from '../figures/publish.mjs';
import { endRecord, headOf, startRecord } from '../figures/record.mjs';
import { table } from '../figures/table.mjs';
import { hardwareKernels } from './hardware-kernels.mjs';
import { shaderStats } from './shader-stats.mjs';

/** The driver's other releases count registers and schedule otherwise. */
const CHECKED_DRIVER = 'radv: Mesa 25.0.7';
const ICD_FILE = '/usr/share/vulkan/icd.d/radeon_icd.json';
const COMPILE_LIMIT_MS = 600_000;

/** At fewer waves loads are not hidden behind arithmetic. */
const LEAST_WAVES = 8;
/** Vector instructions beside multiply-adds, for each of them, in loops that multiply. */
const MOST_OTHER = 0.25;
/** What is made of products; other kernels wait for memory. */
const MULTIPLIES = /^(matmul|attention)/;
/** Loops with fewer multiply-adds are not the product's. */
const LOOP_MULTIPLY_ADDS = 8;

const { values: flags } = parseArgs({
  options: { only: { type: 'string' }, report: { type: 'string' } },
});
const missing = whyNot();
if (missing !== undefined) {
  console.log(`isa: skipped: ${missing}`);
  process.exit(0);
}
const record = await startRecord('bench/kernels/isa.mjs');
const kernels = (await hardwareKernels()).filter(({ label }) => label.includes(flags.only ?? ''));
const { driver, printed } = compile(kernels);
if (!driver.startsWith(CHECKED_DRIVER)) {
  console.log(`isa: skipped: the gates were checked on ${CHECKED_DRIVER}, this is ${driver}`);
  process.exit(0);
}
const rows = kernels.map(({ label }, index) => {
  const stats = shaderStats(printed[index]);
  return { label, ...stats, failures: failuresOf(label, stats) };
});
await endRecord(record);
Object.assign(record, {
  ...{ driver, chip: 'navi31' },
  // Enough to compare two reports by; the whole of a kernel's figures is printed with --only.
  kernels: rows.map(({ label, vgprs, waves, codeBytes, failures }) =>
    [label, vgprs, waves, codeBytes, failures.join(', ')].join(' | '),
  ),
});
publish(flags.report, report(), record);
const failed = rows.filter(({ failures }) => failures.length > 0);
process.exit(failed.length === 0 ? 0 : 1);

function whyNot() {
  if (process.platform !== 'linux' || process.arch !== 'x64') {
    return 'the preloaded part is for Linux on x64';
  }
  if (!existsSync(ICD_FILE)) {
    return `no RADV here (${ICD_FILE})`;
  }
  return spawnSync('cc', ['--version']).status === 0 ? undefined : 'no C compiler (cc)';
}

function compile(list) {
  const folder = mkdtempSync(join(tmpdir(), 'shardweave-isa-'));
  try {
    const library = join(folder, 'null-winsys.so');
    const source = join(import.meta.dirname, 'null-winsys.c');
    execFileSync('cc', ['-shared', '-fPIC', '-O1', '-o', library, source], { stdio: 'inherit' });
    const input = join(folder, 'kernels.json');
    writeFileSync(input, JSON.stringify(list));
    const script = join(import.meta.dirname, 'compile.mjs');
    const output = join(folder, 'printed.txt'); // a pipe as full as this would lose lines
    const printedTo = openSync(output, 'w');
    // V8's own handler of faults would come before the preloaded one.
    const child = spawnSync(process.execPath, ['--disable-wasm-trap-handler', script, input], {
      env: {
        ...process.env,
        LD_PRELOAD: library,
        VK_ICD_FILENAMES: ICD_FILE,
        RADV_FORCE_FAMILY: 'navi31',
        RADV_DEBUG: 'shaderstats,asm',
        MESA_SHADER_CACHE_DISABLE: 'true',
      },
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', printedTo],
      timeout: COMPILE_LIMIT_MS,
    });
    closeSync(printedTo);
    const text = readFileSync(output, 'utf8');
    const parts = text.split(/^@@@ (?:\d+|end)$/m);
    if (child.status !== 0 || parts.length !== list.length + 2) {
      const ended = child.signal ?? child.status;
      throw new Error(
        `the compiler ended with ${ended} at kernel ${parts.length - 2}: ${list[parts.length - 2]?.label}\n${text.slice(-4000)}`,
      );
    }
    return { driver: child.stdout.trim(), printed: parts.slice(1, -1) };
  } finally {
    rmSync(folder, { recursive: true });
  }
}

function failuresOf(label, stats) {
  const failures = [];
  if (stats.spilledVgprs + stats.spilledSgprs + stats.scratchBytes > 0) {
    failures.push('spills');
  }
  if (stats.waves < LEAST_WAVES) {
    failures.push(`${stats.waves} waves`);
  }
  // A vector of four 16-bit elements has 64 bits. Rows that no vector fits are printed and not judged.
  const { loop } = stats;
  const isProduct = /^matmul [NT]/.test(label);
  const isWide = label.includes(' wide a b ');
  if (isProduct && isWide && loop.load128 + loop.load64 < loop.loads) {
    failures.push('narrow loads');
  }
  if (MULTIPLIES.test(label) && isProduct === isWide && loop?.multiplyAdds >= LOOP_MULTIPLY_ADDS) {
    const other = loop.otherVector / loop.multiplyAdds;
    if (other > MOST_OTHER) {
      failures.push(`${other.toFixed(2)} other vector instructions`);
    }
  }
  return failures;
}

function report() {
  const failing = rows.filter(({ failures }) => failures.length > 0);
  return [
    headOf('Kernels compiled for a GPU', record),
    `${driver}, for navi31; ${rows.length} kernels, ${failing.length} fail a gate: no spill, at least ${LEAST_WAVES} waves a SIMD, 128-bit loads (of 16-bit elements 64-bit ones) where rows allow, at most ${MOST_OTHER} other vector instructions for a multiply-add in loops that multiply; products of rows that no vector fits are printed and judged by the first two alone. "Loop" is the one with most multiply-adds: multiply-adds / other vector instructions / LDS instructions. Products and attention by kernel, the other families by their worst.`,
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
        'fails',
      ],
      [...rows.filter(isListed).map(cells), ...families().map(cells)],
    ),
  ].join('\n\n');
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
    row.failures.join(', ') || '-',
  ];
}

/** By the first word of their labels: for each column the largest, of waves the smallest. */
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
