// Gives Node the browser's WebGPU globals, which the rivals look for. Import before them.

import { create, globals } from 'webgpu';

Object.assign(globalThis, globals);
// Referenced for the life of the process: Dawn's instance must not be collected.
globalThis.benchGpu = create(['enable-dawn-features=allow_unsafe_apis']);
Object.defineProperty(globalThis, 'navigator', {
  value: { gpu: globalThis.benchGpu, userAgent: 'node' },
  configurable: true,
});
