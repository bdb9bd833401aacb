// Tries a library in a process of its own: one that crashes takes nobody along. One that works is
// kept in mind by its path, size and time of change, so that it is tried once.

import { fnv1a } from '@shardweave/dtypes';
import type { NativeLibrary } from './gemm.js';
import { readProcessor } from './locate-library.js';
import { multiplies, type Printed, trial } from './trials.js';

const { execFile } = process.getBuiltinModule('node:child_process');
const { readFileSync, renameSync, rmSync, statSync, writeFileSync } =
  process.getBuiltinModule('node:fs');
const { cpus, release, tmpdir, userInfo } = process.getBuiltinModule('node:os');
const { join } = process.getBuiltinModule('node:path');
const { promisify } = process.getBuiltinModule('node:util');

/** The longest that a trial may take. */
const TRIAL_MS = 10_000;

/** A library that works: its own name, version and core. */
interface Known {
  readonly name: string;
  /** Whether whole tiles of rows have the same bits alone as beside others. */
  readonly keepsRows: boolean;
}

/** What a trial found, or why the library can't be used. */
export type Verdict = Known | { readonly fault: string };

const tried = new Map<string, Promise<Verdict>>();

/**
 * Returns what was found when the library was first tried, as `run` does in a process of its own.
 */
export function tryLibrary(native: NativeLibrary, run = trial): Promise<Verdict> {
  const key = keyOf(native, run);
  let verdict = tried.get(key);
  if (verdict === undefined) {
    const kept = readKept()[key];
    verdict = kept?.name === undefined ? tryAndKeep(native, key, run) : Promise.resolve(kept);
    tried.set(key, verdict);
  }
  return verdict;
}

/**
 * A file that has changed is another library, and so is one of another version of the system. On
 * another processor, or where a variable such as OPENBLAS_CORETYPE says so, a library has other
 * kernels.
 */
function keyOf({ library, koffi }: NativeLibrary, run: typeof trial): string {
  const files = [library, koffi].map((path) => {
    const stats = statSync(path, { throwIfNoEntry: false });
    return [path, stats?.size, stats?.mtimeMs];
  });
  const variables = Object.entries(process.env).filter(
    ([name]) =>
      /^(OPENBLAS|GOTO|OMP|MKL|BLIS|VECLIB|DNNL|ONEDNN)_/.test(name) && !(name in ONE_THREAD),
  );
  return JSON.stringify([run.name, ...files, release(), processor(), features(), variables.sort()]);
}

const processor = () => cpus()[0]?.model.trim() ?? 'unknown processor';

/** A hash of what Linux tells of the processor: virtual machines of two chips have one name. */
const features = () =>
  fnv1a(
    readProcessor().replaceAll(
      /^(cpu MHz|bogomips|apicid|initial apicid|core id|processor)\b.*$/gim,
      '',
    ),
  );

async function tryAndKeep(native: NativeLibrary, key: string, run: typeof trial): Promise<Verdict> {
  const verdict = await runTrial(native, run);
  if ('name' in verdict) {
    keep(key, verdict);
  }
  return verdict;
}

/** Set for the process of a trial. */
const TRIAL_VARIABLE = 'SHARDWEAVE_LIBRARY_TRIAL';

async function runTrial(native: NativeLibrary, run: typeof trial): Promise<Verdict> {
  if (process.env[TRIAL_VARIABLE] !== undefined) {
    // An executable with Node in it runs its own program, whatever its arguments say.
    return { fault: 'this program is its own Node, in which nothing can be tried' };
  }
  const { NODE_OPTIONS: _, ...env } = process.env; // a loader or debugger is not for it
  const args = ['-e', `(${run})(${multiplies})`, native.koffi, native.library];
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
 * What is known of libraries that work, by what keyOf says of them, in a file of this user among
 * the system's temporary ones. Without it, a library is tried once in each process.
 */
const keptFile = () => join(tmpdir(), `shardweave-libraries-${userInfo().uid}.json`);

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
