// From a build of the kernels, as tooling/asc embeds it, to a WebAssembly module.

import { fnv1a } from '@shardweave/dtypes';
import * as layout from '../../../assembly/layout.js';
import { StateError } from '../../errors.js';

/** A file of src/generated. */
export interface KernelBuild {
  readonly wasmBase64: string;
  /** Of the constants of assembly/layout.ts that it was compiled with. */
  readonly layoutHash: number;
}

/**
 * A build of another layout would take one command for another and compute garbage without a word.
 * @throws {StateError} for such a build
 */
export async function compileKernels(build: KernelBuild): Promise<WebAssembly.Module> {
  const expected = hashOfLayout();
  if (build.layoutHash !== expected) {
    throw new StateError(
      `cpu: expected kernels compiled for commands ${expected}, got ${build.layoutHash}. Run the build: npm run build, or npm run generate in packages/tensor-core.`,
    );
  }
  const binary = atob(build.wasmBase64);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) {
    bytes[i] = binary.charCodeAt(i);
  }
  return WebAssembly.compile(bytes);
}

function hashOfLayout(): number {
  const entries = Object.entries(layout).map(([name, value]) => `${name}=${value};`);
  return fnv1a(entries.sort().join(''));
}
