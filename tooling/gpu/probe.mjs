// The first minute on a machine: what its adapter is and offers, whether PyTorch is there, whether
// kernels of ten families are right, and the rates of a copy and of a product of each dtype.
//   node probe.mjs --rows FILE --scale full|tiny --python PYTHON

import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { Device } from '@shardweave/tensor-core';
import { kernelCases } from '@shardweave/tensor-core/testing';
import { createWebGpuBackend } from '@shardweave/tensor-core/webgpu';
import { openNodeGpu } from '@shardweave/tensor-core/webgpu-node';
import { clocks } from '../../bench/engines/clocks.mjs';
import { appendRow } from '../../bench/figures/rows.mjs';

const BENCH = fileURLToPath(new URL('../../bench/hardware.mjs', import.meta.url));
/** Beginnings of names of cases; the first case of each runs. */
const CASES = [
  ...['matmul f32 of all shapes in', 'matmul f16 of all shapes in', 'matmul bf16 of all shapes in'],
  ...['softmax f32', 'layerNorm f32', 'crossEntropy f32', 'reduce f32', 'adam', 'embedding'],
  'attention f32 [1, 2/1, 70/70, 64] isCausal true',
];
const ASK_PYTHON = `import torch
print(torch.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else "without CUDA")`;
const PYTHON_MS = 60_000;

const { values: flags } = parseArgs({
  options: {
    rows: { type: 'string' },
    scale: { type: 'string', default: 'full' },
    python: { type: 'string', default: 'python3' },
  },
});
const keep = (row) => appendRow(flags.rows, row);

const gpu = openNodeGpu();
const adapter = await gpu.requestAdapter();
const units = adapter?.info.subgroupMatrixConfigs ?? [];
keep({ about: 'adapter', is: adapter?.info.description ?? 'none that Dawn accepts' });
keep({ about: 'matrix units', is: units.length === 0 ? 'none' : JSON.stringify(units) });
keep({ about: 'clocks, SM, memory, power', is: clocks() ?? 'no nvidia-smi' });
const asked = spawnSync(flags.python, ['-c', ASK_PYTHON], { encoding: 'utf8', timeout: PYTHON_MS });
const lines = (asked.stderr ?? '').trim().split('\n');
keep({ about: 'PyTorch', is: asked.status === 0 ? asked.stdout.trim() : `none: ${lines.at(-1)}` });
if (adapter === null) {
  console.error('probe: expected an adapter; report.md names the drivers that were tried.');
  process.exit(1);
}
const backend = await createWebGpuBackend({ gpu, allowSoftware: true });
const device = new Device(backend);
keep({ about: 'numeric class', is: await device.numericClass() });
let failures = 0;
for (const beginning of CASES) {
  const { name, run } = kernelCases().find((one) => one.name.startsWith(beginning)) ?? {};
  const start = performance.now();
  const says = name === undefined ? `no case begins with ${beginning}` : await judge(run);
  failures += says === 'right' ? 0 : 1;
  keep({ case: name ?? beginning, says, ms: performance.now() - start });
}
await device.dispose();
const bench = spawnSync(
  process.execPath,
  [BENCH, '--parts', 'probe', '--engines', 'shardweave', '--rounds', '3', ...process.argv.slice(2)],
  { stdio: 'inherit' },
);
process.exit(bench.status === 0 && failures === 0 ? 0 : 1);

async function judge(run) {
  try {
    await run(backend);
    return 'right';
  } catch (error) {
    return String(error?.message ?? error).split('\n')[0];
  }
}
