// Carries out an order in the engine at hand: some programs, on devices with some numbers of
// threads, with fused products and without.

import { Device } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { hashOf, PROGRAMS, type Program } from './programs.ts';

export interface Order {
  /** All of them by default. */
  readonly programs?: readonly Program[];
  /** 0 computes on the caller's own thread. */
  readonly threads: readonly number[];
  /** Whether products may be fused, which is a numeric class of its own. */
  readonly fused: readonly boolean[];
}

export interface Outcome {
  readonly program: Program;
  readonly threads: number;
  readonly numericClass: string;
  readonly hash: string;
}

export async function runOrder({ programs = PROGRAMS, threads, fused }: Order): Promise<Outcome[]> {
  const outcomes: Outcome[] = [];
  for (const fusedProducts of fused) {
    for (const count of threads) {
      const backend = await createCpuBackend({ threads: count, fusedProducts });
      const device = new Device(backend);
      const numericClass = await device.numericClass();
      device.dispose();
      for (const program of programs) {
        const hash = await hashOf(program, backend);
        outcomes.push({ program, threads: count, numericClass, hash });
      }
      await backend.dispose();
    }
  }
  return outcomes;
}
