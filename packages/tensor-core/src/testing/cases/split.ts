// Cases of kernels with operands larger than a view may be on the device. They are for devices made
// with a small limit; at a real one of 128 MiB they would take minutes.

import type { Backend } from '../../backend.js';
import { type ConformanceCase, recordedCase } from '../kit/conformance-case.js';
import { ConformanceError } from '../kit/conformance-error.js';
import { elementSplits } from './split-elements.js';
import type { Split } from './split-extent.js';
import { lineSplits } from './split-lines.js';
import { productSplits } from './split-products.js';
import { rowSplits } from './split-rows.js';

/** The largest limit, which keeps operands below a million elements. */
const MAX_LIMIT_BYTES = 64 * 1024;

export function splitCases(): ConformanceCase[] {
  return [...elementSplits(), ...rowSplits(), ...lineSplits(), ...productSplits()].map(splitCase);
}

function splitCase({ title, tolerance, body }: Split): ConformanceCase {
  const name = `split: ${title}`;
  const run = async (backend: Backend) => {
    const limit = backend.info.limits.maxViewBytes;
    if (limit > MAX_LIMIT_BYTES) {
      throw new ConformanceError(
        name,
        `expected a device that limits views to ${MAX_LIMIT_BYTES} bytes or less, got ${limit}`,
      );
    }
    await recordedCase(name, tolerance, (calls) => body(calls, limit)).run(backend);
  };
  return { name, run };
}
