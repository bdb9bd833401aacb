// One named check of a backend, runnable by any test runner or by a page.

import type { Backend } from '../backend.js';
import { ConformanceError } from './conformance-error.js';
import type { ToleranceName } from './tolerance.js';
import { Twin } from './twin.js';

export interface ConformanceCase {
  readonly name: string;
  /** Rejects with ConformanceError on a mismatch; leaves no buffers behind. */
  run(backend: Backend): Promise<void>;
}

/** A case that encodes calls in `body`, on both sides, and compares all operands at its end. */
export function twinCase(
  name: string,
  tolerance: ToleranceName,
  body: (twin: Twin) => void,
): ConformanceCase {
  return freeingCase(name, async (backend) => {
    const twin = new Twin(backend, name, tolerance);
    try {
      body(twin);
      await twin.compare();
    } finally {
      twin.free();
    }
  });
}

/** A case that must end with as many live buffers as it began with. */
export function freeingCase(
  name: string,
  body: (backend: Backend) => Promise<void>,
): ConformanceCase {
  return {
    name,
    async run(backend) {
      const before = backend.usage();
      await body(backend);
      const after = backend.usage();
      if (after.bytes !== before.bytes || after.buffers !== before.buffers) {
        throw new ConformanceError(
          name,
          `usage: expected ${before.bytes} bytes in ${before.buffers} buffers as before, got ${after.bytes} in ${after.buffers}`,
        );
      }
    },
  };
}
