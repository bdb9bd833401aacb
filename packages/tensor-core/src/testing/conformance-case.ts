// One named check of a backend, runnable by any test runner or by a page.

import type { Backend } from '../backend.js';
import { CallRecorder, type Recording } from './call-recorder.js';
import { ConformanceError } from './conformance-error.js';
import type { ToleranceName } from './tolerance.js';

/** One named check that every backend has to pass; it runs in any test runner, or in a page. */
export interface ConformanceCase {
  readonly name: string;
  /** Rejects with ConformanceError on a mismatch; leaves no buffers behind. */
  run(backend: Backend): Promise<void>;
  /** Bytes of the largest buffer that kernels get; undefined for a case of the queue. */
  readonly largestBytes?: () => number;
}

/**
 * A case that makes calls in `body`, compared in all operands at its end. The reference makes them
 * once, whatever number of backends the case runs on.
 */
export function recordedCase(
  name: string,
  tolerance: ToleranceName,
  body: (calls: CallRecorder) => void,
): ConformanceCase {
  let made: Recording | undefined;
  const recording = () => {
    if (made === undefined) {
      const calls = new CallRecorder(name, tolerance);
      body(calls);
      made = calls.recording();
    }
    return made;
  };
  return {
    ...freeingCase(name, (backend) => recording().repeatOn(backend)),
    largestBytes: () => recording().largestBytes,
  };
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
