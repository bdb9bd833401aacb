// The conformance suite of stores. Run every case that the harness can run: `await
// storeCase.run(harness)`.

import { commitCases } from './commit-cases.js';
import { failureCases } from './failure-cases.js';
import type { StoreCase } from './harness.js';
import { valueCases } from './value-cases.js';

export type { StoreCase, StoreHarness } from './harness.js';

/** All cases of conformance: values, failures and commits. */
export const storeCases: readonly StoreCase[] = [...valueCases, ...failureCases, ...commitCases];
