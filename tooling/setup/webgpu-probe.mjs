// A child process of the driver search and of doctor: prints, as JSON, the adapters that Dawn finds
// with the environment this process was started in. A process of its own, for the loader of Vulkan
// reads its environment once, and a broken driver may crash whoever loads it.
const LIMITS = [
  'maxBufferSize',
  'maxStorageBufferBindingSize',
  'maxStorageBuffersPerShaderStage',
  'maxComputeInvocationsPerWorkgroup',
  'maxComputeWorkgroupStorageSize',
];

const { create, globals } = await import('webgpu');
Object.assign(globalThis, globals);
const gpu = create([]); // kept referenced to the end: Dawn crashes when it is collected
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
// Dawn's own threads can outlive the work; the answer is out.
process.exit(gpu ? 0 : 1);
