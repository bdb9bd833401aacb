// Tries a library in a process of its own: one that crashes takes nobody along. One that works is
// kept in mind by its path, size and time of change, so that it is tried once.

import { fnv1a } from '@shardweave/dtypes';
import type { NativeLibrary } from './gemm.js';

const { execFile } = process.getBuiltinModule('node:child_process');
const { readFileSync, renameSync, rmSync, statSync, writeFileSync } =
  process.getBuiltinModule('node:fs');
const { cpus, release, tmpdir, userInfo } = process.getBuiltinModule('node:os');
const { join } = process.getBuiltinModule('node:path');
const { promisify } = process.getBuiltinModule('node:util');

/** The longest that a library may take to multiply two small matrices. */
const TRIAL_MS = 10_000;

/** A library that works: its own name, version and core. */
interface Known {
  readonly name: string;
  /** Whether whole tiles of rows have the same bits alone as beside others. */
  readonly keepsRows: boolean;
}

/** What a trial found, or why the library can't be used. */
export type Verdict = Known | { readonly fault: string };

/** What the process of a trial prints. */
interface Printed {
  /** What the library says of itself, where it is one that does. */
  readonly says?: readonly string[];
  readonly keepsRows?: boolean;
  readonly fault?: string;
}

const tried = new Map<string, Promise<Verdict>>();

/** Returns what was found when the library was first tried. */
export function tryLibrary(native: NativeLibrary): Promise<Verdict> {
  const key = keyOf(native);
  let verdict = tried.get(key);
  if (verdict === undefined) {
    const kept = readKept()[key];
    verdict = kept?.name === undefined ? tryAndKeep(native, key) : Promise.resolve(kept);
    tried.set(key, verdict);
  }
  return verdict;
}

/**
 * A file that has changed is another library, and so is one of another version of the system. On
 * another processor, or where a variable such as OPENBLAS_CORETYPE says so, a library has other
 * kernels.
 */
function keyOf({ library, koffi }: NativeLibrary): string {
  const files = [library, koffi].map((path) => {
    const stats = statSync(path, { throwIfNoEntry: false });
    return [path, stats?.size, stats?.mtimeMs];
  });
  const variables = Object.entries(process.env).filter(
    ([name]) => /^(OPENBLAS|GOTO|OMP|MKL|BLIS|VECLIB)_/.test(name) && !(name in ONE_THREAD),
  );
  return JSON.stringify([...files, release(), processor(), features(), variables.sort()]);
}

const processor = () => cpus()[0]?.model.trim() ?? 'unknown processor';

/** A hash of what Linux tells of the processor: virtual machines of two chips have one name. */
function features(): number {
  try {
    const first = readFileSync('/proc/cpuinfo', 'utf8').split('\n\n')[0]!;
    return fnv1a(
      first.replaceAll(/^(cpu MHz|bogomips|apicid|initial apicid|core id|processor)\b.*$/gim, ''),
    );
  } catch {
    return 0;
  }
}

async function tryAndKeep(native: NativeLibrary, key: string): Promise<Verdict> {
  const verdict = await runTrial(native);
  if ('name' in verdict) {
    keep(key, verdict);
  }
  return verdict;
}

/** Set for the process of a trial. */
const TRIAL_VARIABLE = 'SHARDWEAVE_LIBRARY_TRIAL';

async function runTrial(native: NativeLibrary): Promise<Verdict> {
  if (process.env[TRIAL_VARIABLE] !== undefined) {
    // An executable with Node in it runs its own program, whatever its arguments say.
    return { fault: 'this program is its own Node, in which nothing can be tried' };
  }
  const { NODE_OPTIONS: _, ...env } = process.env; // a loader or debugger is not for it
  const args = ['-e', `(${trial.toString()})()`, native.koffi, native.library];
  try {
    const { stdout } = await promisify(execFile)(process.execPath, args, {
      env: { ...env, ...ONE_THREAD, ELECTRON_RUN_AS_NODE: '1', [TRIAL_VARIABLE]: '1' },
      timeout: TRIAL_MS,
    });
    const {
      says,
      fault,
      keepsRows = false,
    }: Printed = JSON.parse(stdout.trim().split('\n').at(-1)!);
    return fault === undefined ? { name: nameOf(native.library, says), keepsRows } : { fault };
  } catch (error) {
    const { signal, killed } = error as { signal?: string; killed?: boolean };
    const end = signal ? `ended by ${signal}` : 'ended without an answer';
    const late = `did not end in ${TRIAL_MS / 1000} s`;
    return { fault: `a process that tried it ${killed === true ? late : end}` };
  }
}

/** Variables by which the libraries start no threads of their own: the device has threads. */
export const ONE_THREAD = {
  OPENBLAS_NUM_THREADS: '1',
  OMP_NUM_THREADS: '1',
  MKL_NUM_THREADS: '1',
  BLIS_NUM_THREADS: '1',
  VECLIB_MAXIMUM_THREADS: '1',
};

/**
 * What bits depend on: the library, its version and the kernels that it chose for the processor.
 */
function nameOf(library: string, says: readonly string[] | undefined): string {
  if (says !== undefined) {
    return says.join(' ');
  }
  if (library.includes('/Accelerate.framework/')) {
    return `Accelerate of Darwin ${release()} ${processor()}`;
  }
  const { size } = statSync(library);
  return `${library.split(/[\\/]/).at(-1)} of ${size} bytes ${processor()}`;
}

/**
 * Runs in the process of a trial, from its source text. A library that has the function but does
 * not multiply would train on garbage.
 */
function trial(): void {
  const [, koffi, library] = process.argv as [string, string, string];
  const print = (found: Printed) => console.log(JSON.stringify(found));
  const one = <T>(act: () => T): T | undefined => {
    try {
      return act();
    } catch {
      return undefined;
    }
  };
  const ffi = process.getBuiltinModule('node:module').createRequire(koffi)(koffi);
  try {
    const handle = ffi.load(library);
    const ints = ['int', 'int', 'int', 'int', 'int', 'int'];
    const types = [...ints, 'float', 'void *', 'int', 'void *', 'int', 'float', 'void *', 'int'];
    const sgemm = one(() => handle.func('cblas_sgemm', 'void', types));
    if (sgemm === undefined) {
      print({ fault: 'it has no function cblas_sgemm' });
      return;
    }
    const [m, n, k] = [65, 67, 129];
    // Numbers whose sums are exact in f32, so that every order of them gives the same.
    const a = Float32Array.from({ length: m * k }, (_, index) => (index % 17) - 8);
    const b = Float32Array.from({ length: k * n }, (_, index) => (index % 13) - 6);
    const out = new Float32Array(m * n).fill(Number.NaN);
    sgemm(101, 111, 111, m, n, k, 1, a, k, b, n, 0, out, n);
    const isRight = out.every((value, at) => {
      const [row, column] = [Math.floor(at / n), at % n];
      let sum = 0;
      for (let i = 0; i < k; i++) {
        sum += a[row * k + i]! * b[i * n + column]!;
      }
      return sum === value;
    });
    if (!isRight) {
      print({ fault: 'its cblas_sgemm does not multiply' });
      return;
    }
    const text = (name: string) => one(() => handle.func(name, 'str', [])() as string);
    const config = text('openblas_get_config')?.split(' ').slice(0, 2);
    const core = text('openblas_get_corename');
    // Rows and columns beyond one block of a library, and where its tiles are cut at the end.
    const [rows, columns, depth, first] = [8 * 48 + 37, 1801, 401, 48];
    // Numbers whose sums are rounded.
    const thirds = (size: number) => Float32Array.from({ length: size }, (_, i) => (i % 1009) / 3);
    const [left, right] = [thirds(rows * depth), thirds(depth * columns)];
    const keepsRows = [0, 1, 2, 3].every((transposes) => {
      const [ofLeft, ofRight] = [transposes & 1, transposes >> 1];
      const multiply = (from: number, to: number): Uint8Array => {
        const sums = new Float32Array((to - from) * columns);
        const ownLeft = left.subarray(ofLeft ? from : from * depth);
        const shape = [101, 111 + ofLeft, 111 + ofRight, to - from, columns, depth];
        const operands = [1, ownLeft, ofLeft ? rows : depth, right, ofRight ? depth : columns];
        sgemm(...shape, ...operands, 0, sums, columns);
        return new Uint8Array(sums.buffer);
      };
      const parts = [multiply(0, first), multiply(first, rows)];
      return Buffer.compare(Buffer.concat(parts), multiply(0, rows)) === 0;
    });
    print({ keepsRows, ...(config && core && { says: [...config, core] }) });
  } catch (error) {
    print({ fault: String((error as Error).message) });
  }
}

/**
 * What is known of libraries that work, by what keyOf says of them, in a file of this user among the
 * system's temporary ones. Without it, a library is tried once in each process.
 */
const keptFile = () => join(tmpdir(), `shardweave-products-${userInfo().uid}.json`);

function readKept(): Readonly<Record<string, Known>> {
  try {
    const file = keptFile();
    // Everybody may write to that folder, so the file counts only if it is this user's.
    const isOwn = process.getuid === undefined || statSync(file).uid === process.getuid();
    return (isOwn && JSON.parse(readFileSync(file, 'utf8'))) || {};
  } catch {
    return {};
  }
}

function keep(key: string, known: Known): void {
  const file = keptFile();
  const draft = `${file}.${process.pid}`;
  try {
    writeFileSync(draft, JSON.stringify({ ...readKept(), [key]: known }), { flag: 'wx' });
    renameSync(draft, file);
  } catch {
    rmSync(draft, { force: true });
  }
}
