import { defineConfig } from 'tsup';

export default defineConfig({
  entry: { index: 'src/index.ts', node: 'src/node.ts' },
  format: 'esm',
  dts: true,
  clean: true,
  target: 'es2022',
  sourcemap: true,
});
