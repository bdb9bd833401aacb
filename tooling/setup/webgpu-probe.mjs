// A child process of the driver search and of doctor. It prints as JSON the adapters that Dawn
// finds with the environment of this process. It is a separate process because the Vulkan loader
// reads its environment once, and because a broken driver may crash the process that loads it.
const LIMITS = [
  'maxBufferSize',
  'maxStorageBufferBindingSize',
  'maxStorageBuffersPerShaderStage',
  'maxComputeInvocationsPerWorkgroup',
  'maxComputeWorkgroupStorageSize',
];

const { create, globals } = await import('webgpu');
Object.assign(globalThis, globals);
const gpu = create([]); // kept until the end, since Dawn crashes when it is collected
const found = new Map();
for (const powerPreference of ['high-performance', 'low-power']) {
  const adapter = await gpu.requestAdapter({ powerPreference });
  if (!adapter) {
    continue;
  }
  const { vendor, architecture, device, description, isFallbackAdapter } = adapter.info;
  const device_ = await adapter.requestDevice();
  device_.destroy();
  found.set(`${vendor} ${architecture} ${device} ${description}`, {
    vendor,
    architecture,
    device,
    description,
    isSoftware: isFallbackAdapter,
    features: [...adapter.features].sort(),
    limits: Object.fromEntries(LIMITS.map((name) => [name, adapter.limits[name]])),
  });
}
console.log(`adapters ${JSON.stringify([...found.values()])}`);
// Dawn's own threads may outlive the work, and the answer is printed.
process.exit(gpu ? 0 : 1);
