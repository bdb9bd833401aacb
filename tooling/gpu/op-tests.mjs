// Runs the conformance suite of the backend seam on one device and writes the outcome as JSON.
//   node op-tests.mjs webgpu|cpu FILE
import { writeFileSync } from 'node:fs';
import { kernelCases } from '@shardweave/tensor-core/testing';

const [device, file] = process.argv.slice(2);

const backend = await open();
const failed = [];
let passed = 0;
for (const { name, run } of kernelCases()) {
  try {
    await run(backend);
    passed += 1;
  } catch (error) {
    failed.push({ name, message: error instanceof Error ? error.message : String(error) });
    console.log(`failed: ${name}: ${failed.at(-1).message}`);
  }
}
const { description } = backend.info;
await backend.dispose();
writeFileSync(file, `${JSON.stringify({ device: description, passed, failed }, null, 2)}\n`);
console.log(`${description}: ${passed} passed, ${failed.length} failed`);
process.exit(failed.length === 0 ? 0 : 1);

async function open() {
  if (device === 'cpu') {
    const { createCpuBackend } = await import('@shardweave/tensor-core/cpu');
    return createCpuBackend();
  }
  const { createWebGpuBackend } = await import('@shardweave/tensor-core/webgpu');
  const { openNodeGpu } = await import('@shardweave/tensor-core/webgpu-node');
  return createWebGpuBackend({ gpu: openNodeGpu() });
}
