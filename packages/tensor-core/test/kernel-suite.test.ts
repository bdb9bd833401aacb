// The conformance suite on the reference device itself: the cases are well formed, leave no buffers
// behind, and notice a backend that is wrong.

import { createReferenceBackend, kernelCases } from '@shardweave/tensor-core/testing';
import { describe, test } from 'vitest';

describe('reference device', () => {
  const backend = createReferenceBackend();
  test.each(kernelCases())('$name', (kernelCase) => kernelCase.run(backend));
});
