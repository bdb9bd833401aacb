// The conformance suite of transports. Run every case for every world size that the case and the
// harness share: `await conformanceCase.run(harness, worldSize)`.

import { compressionCases } from './testing/compression-cases.js';
import { dataCases } from './testing/data-cases.js';
import { faultCases } from './testing/fault-cases.js';
import { groupCases } from './testing/group-cases.js';
import type { ConformanceCase } from './testing/harness.js';
import { hostCases } from './testing/host-cases.js';
import { transcriptCase } from './testing/transcript.js';
import { treeCases } from './testing/tree-cases.js';
import { unevenCases } from './testing/uneven-cases.js';

export {
  type ConformanceCase,
  type HarnessOptions,
  STOP_CASE,
  type TestRank,
  type TransportHarness,
} from './testing/harness.js';
export { memoryHarness } from './testing/memory-harness.js';
export * from './testing/simulator/index.js';
export { transcriptHash } from './testing/transcript.js';
export { TRANSCRIPT_HASHES } from './testing/transcript-hashes.js';
export { withDelay } from './testing/with-delay.js';

/**
 * All cases of the conformance suite of transports. Run each for every world size that it shares
 * with the harness, but those that the harness skips by name.
 */
export const conformanceCases: readonly ConformanceCase[] = [
  ...dataCases,
  ...compressionCases,
  ...unevenCases,
  ...treeCases,
  transcriptCase,
  ...hostCases,
  ...groupCases,
  ...faultCases,
];
