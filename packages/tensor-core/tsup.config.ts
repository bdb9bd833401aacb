import { defineConfig } from 'tsup';
import { declarations } from '../../tooling/tsup/declarations.ts';

// Every declaration file begins with this. The first line brings the types of `using`, which a
// project's own `lib` need not name. The empty interfaces merge with those of the project's
// libraries, and stand alone where it has none: what they name is only handed on. The empty export
// makes a module of the worker's file, which declares nothing.
const DECLARATIONS = `/// <reference lib="esnext.disposable" />
export {};
declare global {
  interface GPU {}
  interface GPUDevice {}
  interface GPUAdapter {}
  interface GPUAdapterInfo {}
  interface GPUBuffer {}
}`;

export default defineConfig({
  entry: {
    index: 'src/index.ts',
    cpu: 'src/backends/cpu/index.ts',
    'cpu-worker': 'src/backends/cpu/worker.ts',
    webgpu: 'src/backends/webgpu/index.ts',
    'webgpu-node': 'src/backends/webgpu/node.ts',
    options: 'src/options.ts',
    testing: 'src/testing/index.ts',
  },
  format: 'esm',
  dts: declarations(DECLARATIONS),
  clean: true,
  target: 'es2022',
  sourcemap: true,
  splitting: true,
  external: ['koffi', 'webgpu'],
});
