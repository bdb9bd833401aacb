// Every op on every backend, values and gradients, against float64 twins.

import { type Backend, Device } from '@shardweave/tensor-core';
import { opCases } from '@shardweave/tensor-core/testing';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { testedBackends } from './support/backends.js';

const cases = opCases();

describe.each(await testedBackends())('ops on $name', ({ reason, open }) => {
  describe.skipIf(reason !== undefined)('against float64 twins', () => {
    let backend: Backend;
    beforeAll(async () => {
      backend = await open();
    });
    afterAll(() => backend.dispose());

    test.each(cases)('$name', async (opCase) => {
      const device = new Device(backend, { seed: 7 });
      await opCase.run(device);
      device.dispose();
      expect(backend.usage()).toEqual({ bytes: 0, buffers: 0 });
    });
  });
});
