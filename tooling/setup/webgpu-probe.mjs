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
const PREFERRED = { powerPreference: 'high-performance' };
const gpus = []; // kept until the end, since Dawn crashes when one is collected
const open = (...flags) => {
  const gpu = create(flags);
  gpus.push(gpu);
  return gpu.requestAdapter(PREFERRED);
};
/**
 * A flag for each adapter, in Dawn's order: the error about a name that no adapter has tells all
 * names. Without one, Dawn takes the adapter that it prefers.
 */
const names = await open('adapter=no adapter has this name').then(
  () => [],
  ({ message }) =>
    [...message.matchAll(/^ \* backend: '[^']*', name: '(.*)'$/gm)].map(([, n]) => n),
);
const found = [];
for (const flags of names.length === 0 ? [[]] : names.map((name) => [`adapter=${name}`])) {
  const adapter = await open(...flags);
  if (!adapter) {
    continue;
  }
  const { vendor, architecture, device, description, isFallbackAdapter } = adapter.info;
  const device_ = await adapter.requestDevice();
  device_.destroy();
  found.push({
    vendor,
    architecture,
    device,
    description,
    isSoftware: isFallbackAdapter,
    features: [...adapter.features].sort(),
    limits: Object.fromEntries(LIMITS.map((name) => [name, adapter.limits[name]])),
  });
}
console.log(`adapters ${JSON.stringify(found)}`);
// Dawn's own threads may outlive the work, and the answer is printed.
process.exit(gpus.length > 0 ? 0 : 1);
