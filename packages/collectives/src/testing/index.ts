// The conformance suite of transports. Run every case for every world size that the case and the
// harness share: `await conformanceCase.run(harness, worldSize)`.

import { compressionCases } from './compression-cases.js';
import { dataCases } from './data-cases.js';
import { faultCases } from './fault-cases.js';
import { groupCases } from './group-cases.js';
import type { ConformanceCase } from './harness.js';
import { hostCases } from './host-cases.js';
import { transcriptCase } from './transcript.js';
import { unevenCases } from './uneven-cases.js';

export {
  type ConformanceCase,
  type HarnessOptions,
  STOP_CASE,
  type TestRank,
  type TransportHarness,
} from './harness.js';
export { memoryHarness } from './memory-harness.js';
export * from './simulator/index.js';
export { transcriptHash } from './transcript.js';
export { TRANSCRIPT_HASHES } from './transcript-hashes.js';

/**
 * All cases of the conformance suite of transports. Run each for every world size that it shares
 * with the harness, but those that the harness skips by name.
 */
export const conformanceCases: readonly ConformanceCase[] = [
  ...dataCases,
  ...compressionCases,
  ...unevenCases,
  transcriptCase,
  ...hostCases,
  ...groupCases,
  ...faultCases,
];
