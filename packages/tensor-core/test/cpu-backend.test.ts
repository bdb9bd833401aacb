// The CPU device runs the conformance suite, inline and on one to three threads.

import type { Backend } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import {
  hiddenKeyKernelCases,
  kernelCases,
  manyKernelCases,
} from '@shardweave/tensor-core/testing';
import { afterAll, describe, it } from 'vitest';

const cases = [...kernelCases(), ...manyKernelCases(), ...hiddenKeyKernelCases()];

// The last row is what a host without relaxed SIMD runs.
describe.each([
  ['0', { threads: 0 }],
  ['1', { threads: 1 }],
  ['2', { threads: 2 }],
  ['3', { threads: 3 }],
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
