// The cases of the conformance suite, which any test runner or a page can run.

import type { Backend } from '../../backend.js';
import { CallRecorder, type Recording } from './call-recorder.js';
import { ConformanceError } from './conformance-error.js';
import type { ToleranceName } from './tolerance.js';

/** A named check that every backend has to pass. It runs in any test runner, or in a page. */
export interface ConformanceCase {
  readonly name: string;
  /**
   * Runs the check. It rejects with ConformanceError on a mismatch and leaves no buffers behind.
   */
  run(backend: Backend): Promise<void>;
  /** Returns the bytes of the largest operand. A case of the queue has no such function. */
  readonly largestBytes?: () => number;
  /**
   * Calls the kernels of the check and compares nothing, which shows what a backend makes of them
   * sooner than `run` does. A case of the queue has no such function.
   */
  readonly callOn?: (backend: Backend) => void;
}

/**
 * Makes a case of the calls in `body`, whose operands are all compared at the end. The reference
 * makes the calls once, on however many backends the case runs.
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
    callOn(backend) {
      const calls = new CallRecorder(name, tolerance, { isComputing: false });
      body(calls);
      calls.recording().callOn(backend);
    },
  };
}

/** Makes a case that must end with as many live buffers as it began with. */
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
