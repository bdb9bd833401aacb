// Every op on every backend, values and gradients, against float64 twins.

import { Device } from '@shardweave/tensor-core';
import { createReferenceBackend, opCases } from '@shardweave/tensor-core/testing';
import { describe, test } from 'vitest';

describe('reference', () => {
  const device = new Device(createReferenceBackend());
  test.each(opCases())('$name', (opCase) => opCase.run(device));
});
