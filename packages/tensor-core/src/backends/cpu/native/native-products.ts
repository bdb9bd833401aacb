// Matrix products by a library of the host, in the threads of the device and on its own memory.
// Pages never load this folder, and it imports no module of Node by name, so that their bundlers
// need not know any.

import type * as Koffi from 'koffi';
import { StateError } from '../../../errors.js';
import { bindGemms, type NativeLibrary } from './gemm.js';
import { locateBf16Library, locateLibrary } from './locate-library.js';
import { trialOfBf16 } from './trials.js';
import { ONE_THREAD, tryLibrary } from './try-library.js';

const { createRequire } = process.getBuiltinModule('node:module');

export interface NativeProducts {
  /** The library, its version and the core it computes for, such as `OpenBLAS 0.3.21 Haswell`. */
  readonly name: string;
  /** What a thread binds it by. */
  readonly library: NativeLibrary;
  /** Whether whole tiles of rows have the same bits alone as beside others. */
  readonly keepsRows: boolean;
  /** Whether there is one that multiplies bf16 as it is. */
  readonly takesBf16: boolean;
  readonly bind: typeof bindGemms;
  /** Asks Linux for pages of 2 MiB. To be called before the memory is written to. */
  useLargePages(memory: WebAssembly.Memory, maxBytes: number): void;
  /** Loads the library, or the one for bf16, once. To be called before a thread does. */
  load(isBf16: boolean): void;
}

const INSTALL = 'Install OpenBLAS (Debian: libopenblas0-pthread), or leave products in wasm.';

/**
 * Finds the library by its name, or one that is known, and tries it.
 * @throws {StateError} where there is none, or it does not work
 */
export async function findLibrary(name: string | undefined): Promise<NativeProducts> {
  const koffi = findKoffi();
  const files = locateLibrary(name);
  const faults: string[] = [];
  for (const file of files) {
    const own = { library: file, koffi };
    const verdict = await tryLibrary(own);
    if ('name' in verdict) {
      // Whoever names a library means its bits.
      const bf16 = name === undefined ? await findBf16(koffi) : undefined;
      const library = { ...own, ...(bf16 && { bf16: bf16.file }) };
      return {
        ...verdict,
        ...(bf16 && { name: `${verdict.name} and ${bf16.name}` }),
        library,
        takesBf16: bf16 !== undefined,
        bind: bindGemms,
        useLargePages: (memory, maxBytes) => useLargePages(library, memory, maxBytes),
        load: (isBf16) => load({ koffi, library: isBf16 ? library.bf16! : file }, isBf16),
      };
    }
    faults.push(`${file}: ${verdict.fault}`);
  }
  const what = name === undefined ? 'OpenBLAS or Accelerate' : `the library ${name}`;
  const got = faults.length > 0 ? faults.join('; ') : 'none: this machine has no such file';
  throw new StateError(`cpu: native products: expected ${what}, got ${got}. ${INSTALL}`);
}

/** Finds oneDNN where the processor has a matrix unit for bf16, of five times the rate of f32. */
async function findBf16(koffi: string): Promise<{ name: string; file: string } | undefined> {
  for (const file of locateBf16Library()) {
    const verdict = await tryLibrary({ library: file, koffi }, trialOfBf16);
    if ('name' in verdict) {
      return { name: verdict.name, file };
    }
  }
  return undefined;
}

function findKoffi(): string {
  try {
    return createRequire(import.meta.url).resolve('koffi');
  } catch (cause) {
    throw new StateError(
      'cpu: native products are called through the optional package koffi. Install it: npm i koffi.',
      { cause },
    );
  }
}

/**
 * Copies between the memories of two ranks of 26M take a quarter less of their main threads than in
 * pages of 4 KiB. Most systems give larger ones to those who ask; a kernel without any refuses,
 * which changes nothing.
 */
function useLargePages(library: NativeLibrary, memory: WebAssembly.Memory, maxBytes: number): void {
  if (process.platform !== 'linux') {
    return;
  }
  const MADV_HUGEPAGE = 14;
  withKoffi(library, (ffi) => {
    const advise = ffi.load(null).func('madvise', 'int', ['uint64_t', 'size_t', 'int']);
    advise(ffi.address(new Uint8Array(memory.buffer)), maxBytes, MADV_HUGEPAGE);
  });
}

/**
 * Libraries by their paths. The handles are kept, because koffi unloads a library with the last
 * one, and a worker that loaded it anew would get threads of the library's own.
 */
const loaded = new Map<string, Koffi.LibraryHandle>();

/**
 * A library starts threads of its own when it is loaded, one a core, unless variables say
 * otherwise. Only the main thread's are those that a library sees.
 */
function load(native: NativeLibrary, isBf16: boolean): void {
  const { library } = native;
  if (loaded.has(library)) {
    return;
  }
  const before = { ...process.env };
  Object.assign(process.env, ONE_THREAD);
  try {
    withKoffi(native, (ffi) => {
      const handle = ffi.load(library);
      if (isBf16 && !usesUnit(handle)) {
        throw new Error('it does not use the matrix unit in this process');
      }
      setThreads(handle);
      loaded.set(library, handle);
    });
  } finally {
    for (const variable of Object.keys(ONE_THREAD)) {
      if (before[variable] === undefined) {
        delete process.env[variable];
      } else {
        process.env[variable] = before[variable];
      }
    }
  }
}

/** Koffi was there when the library was tried, which may be days ago. */
function withKoffi({ library, koffi }: NativeLibrary, act: (ffi: typeof Koffi) => void): void {
  try {
    act(createRequire(koffi)(koffi));
  } catch (cause) {
    throw new StateError(
      `cpu: native products: ${library} was tried and can't be loaded by ${koffi} any more (${(cause as Error).message}). Install koffi again, or leave products in wasm.`,
      { cause },
    );
  }
}

/** A process has to ask the system for the unit, and may be refused. */
function usesUnit(oneDnn: Koffi.LibraryHandle): boolean {
  return (oneDnn.func('dnnl_get_effective_cpu_isa', 'int', [])() & 0x200) !== 0;
}

/** Somebody else in this process may have loaded the library before. */
function setThreads(handle: Koffi.LibraryHandle): void {
  for (const name of ['openblas_set_num_threads', 'MKL_Set_Num_Threads']) {
    try {
      handle.func(name, 'void', ['int'])(1);
    } catch {
      // It is another library.
    }
  }
}
