import { defineConfig } from 'tsup';

export default defineConfig({
  entry: {
    index: 'src/index.ts',
    cpu: 'src/backends/cpu/index.ts',
    'cpu-worker': 'src/backends/cpu/worker.ts',
    webgpu: 'src/backends/webgpu/index.ts',
    'webgpu-node': 'src/backends/webgpu/node.ts',
    testing: 'src/testing/index.ts',
  },
  format: 'esm',
  dts: true,
  clean: true,
  target: 'es2022',
  sourcemap: true,
  splitting: true,
  external: ['webgpu'],
});
