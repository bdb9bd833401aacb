// Gives Node the WebGPU globals of a browser, which the rivals look for. Import it before them.

import { create, globals } from 'webgpu';

Object.assign(globalThis, globals);
// The reference lives as long as the process, since Dawn's instance must not be collected.
globalThis.benchGpu = create(['enable-dawn-features=allow_unsafe_apis']);
Object.defineProperty(globalThis, 'navigator', {
  value: { gpu: globalThis.benchGpu, userAgent: 'node' },
  configurable: true,
});
