// Chooses the build of the kernels that a host runs, and compiles it from the text in which
// tooling/asc embeds it.

import { fnv1a } from '@shardweave/dtypes';
import * as layout from '../../../assembly/layout.js';
import { StateError } from '../../errors.js';
import { FUSE_FACTOR, PLAIN_RESULT } from '../../numeric-class.js';

/** A file of src/generated. */
export interface KernelBuild {
  readonly wasmBase64: string;
  /** A hash of the constants of assembly/layout.ts that it was compiled with. */
  readonly layoutHash: number;
}

export interface BuildChoice {
  readonly isThreaded: boolean;
  /** Whether products may be fused, which happens where the host can. */
  readonly fusedProducts: boolean;
}

export interface ChosenKernels {
  readonly module: WebAssembly.Module;
  readonly isFused: boolean;
}

/** Loads the build for this host. Each is a chunk of its own, so that pages fetch only that one. */
export async function chooseKernels(choice: BuildChoice): Promise<ChosenKernels> {
  const isFused = choice.fusedProducts && (await canFuse());
  const build: KernelBuild = isFused
    ? await import('../../generated/cpu-fused.js')
    : await import('../../generated/cpu-plain.js');
  return { module: await compileKernels(build, { isShared: choice.isThreaded }), isFused };
}

/**
 * An engine that takes relaxed SIMD still rounds products where the processor has no fused
 * multiply-add, so one is computed.
 */
async function canFuse(): Promise<boolean> {
  const { wasmBase64 } = await import('../../generated/fused-probe.js');
  const bytes = bytesOf(wasmBase64);
  if (!WebAssembly.validate(bytes)) {
    return false;
  }
  const { instance } = await WebAssembly.instantiate(bytes);
  const multiplyAdd = instance.exports.multiplyAdd as (a: number, b: number, c: number) => number;
  return multiplyAdd(FUSE_FACTOR, FUSE_FACTOR, -1) !== PLAIN_RESULT;
}

/**
 * Refuses a build of another layout, which would take one command for another and compute garbage
 * without a word.
 * @throws {StateError} for such a build
 */
export async function compileKernels(
  build: KernelBuild,
  { isShared }: { readonly isShared: boolean },
): Promise<WebAssembly.Module> {
  const expected = hashOfLayout();
  if (build.layoutHash !== expected) {
    throw new StateError(
      `cpu: expected kernels compiled with this assembly/layout.ts (hash ${expected}), got others (${build.layoutHash}). Run npm run build, or npm run generate in packages/tensor-core.`,
    );
  }
  const bytes = bytesOf(build.wasmBase64);
  if (!isShared) {
    bytes[limitsIn(bytes)] = OWN_MEMORY;
  }
  return WebAssembly.compile(bytes);
}

/** How a module imports `env.memory`: its names with their lengths, and the kind; limits follow. */
const MEMORY_IMPORT = [3, ...charCodes('env'), 6, ...charCodes('memory'), 2];
/**
 * The first byte of limits that have a maximum, of memory that threads share and of other memory.
 */
const SHARED_MEMORY = 3;
const OWN_MEMORY = 1;

/**
 * Where a build, which is compiled for shared memory, says so: the one byte in which it differs
 * from a build for a host without threads.
 */
function limitsIn(bytes: Uint8Array): number {
  const at = bytes.findIndex((_, i) => MEMORY_IMPORT.every((byte, j) => bytes[i + j] === byte));
  const limits = at + MEMORY_IMPORT.length;
  if (at < 0 || bytes[limits] !== SHARED_MEMORY) {
    throw new StateError('cpu: expected kernels that import a shared memory. Run the build.');
  }
  return limits;
}

function charCodes(text: string): number[] {
  return Array.from(text, (char) => char.charCodeAt(0));
}

function bytesOf(base64: string): Uint8Array<ArrayBuffer> {
  const binary = atob(base64);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) {
    bytes[i] = binary.charCodeAt(i);
  }
  return bytes;
}

function hashOfLayout(): number {
  const entries = Object.entries(layout).map(([name, value]) => `${name}=${value};`);
  return fnv1a(entries.sort().join(''));
}
