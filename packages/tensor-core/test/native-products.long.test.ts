// Every kernel and op with a library's products, which get those of every size here.

import { type Backend, Device } from '@shardweave/tensor-core';
import { hiddenKeyKernelCases, kernelCases, opCases } from '@shardweave/tensor-core/testing';
import { afterAll, beforeAll, describe, it } from 'vitest';
import { openCpuBackend } from '../src/backends/cpu/create-cpu-backend.js';
import { libraryProblem } from './support/native-library.js';

const suffix = libraryProblem === undefined ? '' : ` (${libraryProblem})`;

describe.skipIf(libraryProblem !== undefined).each([0, 1, 2, 3])(
  `with native products on %i threads${suffix}`,
  (threads) => {
    let backend: Backend;
    beforeAll(async () => {
      backend = await openCpuBackend({ threads, products: 'native' }, 1);
    });
    afterAll(() => backend.dispose());

    it.each([...kernelCases(), ...hiddenKeyKernelCases()])('kernel $name', (one) =>
      one.run(backend),
    );

    it.each(opCases())('op $name', async (one) => {
      const device = new Device(backend, { seed: 7 });
      await one.run(device);
      device.dispose();
    });
  },
);
