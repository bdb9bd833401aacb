// The CPU device against the conformance suite, inline and on one to three threads.

import type { Backend } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { kernelCases, manyKernelCases } from '@shardweave/tensor-core/testing';
import { afterAll, describe, it } from 'vitest';

describe.each([0, 1, 2, 3])('conformance with threads: %i', (threads) => {
  let opened: Promise<Backend> | undefined;
  const open = () => {
    opened ??= createCpuBackend({ threads });
    return opened;
  };
  afterAll(async () => {
    await (await open()).dispose();
  });
  for (const conformanceCase of [...kernelCases(), ...manyKernelCases()]) {
    it(conformanceCase.name, async () => {
      await conformanceCase.run(await open());
    });
  }
});
