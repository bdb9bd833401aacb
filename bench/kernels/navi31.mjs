// Compiles kernels by Mesa's RADV on its null window system, as for an RDNA 3 chip (navi31), and
// checks them against gates. It executes nothing.

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
import { shaderStats } from './shader-stats.mjs';

/**
 * The release that the gates were checked with. Others count registers and schedule differently.
 */
export const CHECKED_DRIVER = 'radv: Mesa 25.0.7';
const ICD_FILE = '/usr/share/vulkan/icd.d/radeon_icd.json';
const COMPILE_LIMIT_MS = 600_000;

/** With fewer waves, arithmetic does not hide the latency of loads. */
export const LEAST_WAVES = 8;
/** How many other vector instructions there may be per multiply-add, in loops that multiply. */
export const MOST_OTHER = 0.25;
/** Kernels that consist of products. All others wait for memory. */
export const MULTIPLIES = /^(matmul|attention)/;
/**
 * A kernel whose busiest loop has fewer multiply-adds is not judged, since that loop is not the one
 * of the product.
 */
const LOOP_MULTIPLY_ADDS = 8;
/**
 * Other loops are judged too, if they have more multiply-adds than this. Attention has a loop with
 * exactly this many for blocks in which NaN or infinities are behind hidden keys. It runs rarely
 * and is not judged.
 */
const RARE_MULTIPLY_ADDS = 64;

const FEW_ROWS = /^attention .* (8|16|32)x\d+x\d$/;

/**
 * Why nothing can be compiled here; undefined where it can. The release of the driver is known only
 * after it has compiled, so compileKernels checks that.
 */
export function whyNoCompiler() {
  if (process.platform !== 'linux' || process.arch !== 'x64') {
    return 'the preloaded part is for Linux on x64';
  }
  if (!existsSync(ICD_FILE)) {
    return `no RADV here (${ICD_FILE})`;
  }
  return spawnSync('cc', ['--version']).status === 0 ? undefined : 'no C compiler (cc)';
}

/**
 * The figures of each kernel and the gates that it fails. Where the driver is of another release
 * than the gates were checked with, there are none.
 * @param {readonly {label: string, wgsl: string}[]} list
 */
export function compileKernels(list) {
  const { driver, printed } = compile(list);
  if (!driver.startsWith(CHECKED_DRIVER)) {
    return { driver };
  }
  const kernels = list.map(({ label }, index) => {
    const stats = shaderStats(printed[index]);
    return { label, ...stats, failures: failuresOf(label, stats) };
  });
  return { driver, kernels };
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
    const output = join(folder, 'printed.txt'); // a pipe that fills up would lose lines
    const printedTo = openSync(output, 'w');
    // V8's own handler of faults would run before the preloaded one.
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
  // Four 16-bit elements are a vector of 64 bits. Rows that no vector fits are printed but not
  // judged.
  const { loop } = stats;
  const isProduct = /^matmul [NT]/.test(label);
  const isWide = label.includes(isProduct ? ' wide a b ' : ' wide ');
  if (label.includes('matrix') && loop.matrix === 0) {
    failures.push('no matrix instruction');
  }
  if (isProduct && isWide && loop.load128 + loop.load64 < loop.loads) {
    failures.push('narrow loads');
  }
  // In a loop of matrix instructions the multiply-adds only sum an operand. Attention of few rows,
  // such as those of one generated token, waits for memory.
  const isJudged = MULTIPLIES.test(label) && isWide && loop.matrix === 0;
  if (isJudged && !FEW_ROWS.test(label)) {
    const judged = stats.loops.filter(({ multiplyAdds }, i) =>
      i === 0 ? multiplyAdds >= LOOP_MULTIPLY_ADDS : multiplyAdds > RARE_MULTIPLY_ADDS,
    );
    const other = judged.map((each) => each.otherVector / each.multiplyAdds);
    if (other.some((each) => each > MOST_OTHER)) {
      failures.push(`${other.map((each) => each.toFixed(2)).join(', ')} other vector instructions`);
    }
  }
  return failures;
}
