// The CPU device runs the conformance suite, inline and on two threads, and in the long run on one
// and on three, with f16 and bf16 for each case.

import type { Backend } from '@shardweave/tensor-core';
import { type CpuBackendOptions, createCpuBackend } from '@shardweave/tensor-core/cpu';
import {
  hiddenKeyKernelCases,
  kernelCases,
  manyKernelCases,
} from '@shardweave/tensor-core/testing';
import { afterAll, describe, it } from 'vitest';
import { halvesInTurns } from '../../../tooling/test-kit/first-of-each.ts';

const isLong = process.env.SHARDWEAVE_LONG === '1';
const all = [...kernelCases(), ...manyKernelCases(), ...hiddenKeyKernelCases()];
const cases = isLong ? all : halvesInTurns(all);

// The last row is what a host without relaxed SIMD runs.
describe.each<[threads: string, options: CpuBackendOptions]>([
  ['0', { threads: 0 }],
  ['2', { threads: 2 }],
  ...(isLong ? [1, 3] : []).map((threads): [string, CpuBackendOptions] => [
    `${threads}`,
    { threads },
  ]),
  ['2, plain products', { threads: 2, fusedProducts: false }],
])('conformance with threads: %s', (_, options) => {
  let opened: Promise<Backend> | undefined;
  const open = () => {
    opened ??= createCpuBackend(options);
    return opened;
  };
  afterAll(async () => {
    await (await open()).dispose();
  });
  for (const conformanceCase of cases) {
    it(conformanceCase.name, async () => {
      await conformanceCase.run(await open());
    });
  }
});
