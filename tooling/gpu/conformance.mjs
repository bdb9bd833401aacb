// Runs the conformance suite of the backend seam on the GPU. A row tells each case that fails, and
// every so often how many have passed.
//   node conformance.mjs --rows FILE --scale full|tiny

import { parseArgs } from 'node:util';
import { kernelCases } from '@shardweave/tensor-core/testing';
import { createWebGpuBackend } from '@shardweave/tensor-core/webgpu';
import { openNodeGpu } from '@shardweave/tensor-core/webgpu-node';
import { appendRow } from '../../bench/figures/rows.mjs';

const TOLD_EVERY = 25;
/** The cases of a trial run. */
const TINY = 60;

const { values: flags } = parseArgs({
  options: {
    rows: { type: 'string' },
    scale: { type: 'string', default: 'full' },
    python: { type: 'string' },
  },
});
const backend = await createWebGpuBackend({ gpu: openNodeGpu(), allowSoftware: true });
const cases = kernelCases().slice(0, flags.scale === 'tiny' ? TINY : undefined);
let [passed, failed] = [0, 0];
for (const [i, { name, run }] of cases.entries()) {
  try {
    await run(backend);
    passed += 1;
  } catch (error) {
    failed += 1;
    appendRow(flags.rows, { case: name, says: String(error?.message ?? error).split('\n')[0] });
  }
  if ((i + 1) % TOLD_EVERY === 0 || i + 1 === cases.length) {
    appendRow(flags.rows, { passed, failed, of: cases.length });
  }
}
await backend.dispose();
process.exit(failed === 0 ? 0 : 1);
