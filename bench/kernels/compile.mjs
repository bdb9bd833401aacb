// Compiles kernels on the driver that the environment names, and computes nothing. The driver
// prints to native stderr. A line `@@@ index` precedes what it says about each kernel.
//   node compile.mjs KERNELS.json
import { readFileSync, writeSync } from 'node:fs';
import { create } from 'webgpu';

const STDERR = 2;
const gpu = create(['enable-dawn-features=allow_unsafe_apis']);
const adapter = await gpu.requestAdapter();
if (adapter === null) {
  throw new Error('no adapter: the driver does not open');
}
console.log(adapter.info.description);
const { limits } = adapter;
const device = await adapter.requestDevice({
  requiredFeatures: [
    'subgroups',
    'timestamp-query',
    'shader-f16',
    'subgroup-size-control',
    'chromium-experimental-subgroup-matrix',
  ],
  requiredLimits: {
    maxComputeInvocationsPerWorkgroup: Math.min(limits.maxComputeInvocationsPerWorkgroup, 1024),
    maxComputeWorkgroupSizeX: Math.min(limits.maxComputeWorkgroupSizeX, 1024),
    maxComputeWorkgroupStorageSize: Math.min(limits.maxComputeWorkgroupStorageSize, 32768),
    maxStorageBuffersPerShaderStage: Math.min(limits.maxStorageBuffersPerShaderStage, 10),
  },
});
device.addEventListener('uncapturederror', ({ error }) => {
  console.error(error.message);
  process.exit(1);
});
for (const [index, { label, wgsl }] of JSON.parse(
  readFileSync(process.argv[2], 'utf8'),
).entries()) {
  writeSync(STDERR, `\n@@@ ${index}\n`);
  const module = device.createShaderModule({ label, code: wgsl });
  device.createComputePipeline({ label, layout: 'auto', compute: { module } });
}
writeSync(STDERR, '\n@@@ end\n');
await new Promise((resolve) => setTimeout(resolve, 50)); // errors arrive in a later turn
process.exit(0); // nothing was submitted, and the driver cannot shut down
