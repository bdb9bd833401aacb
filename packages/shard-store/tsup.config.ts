import { defineConfig } from 'tsup';

export default defineConfig({
  entry: {
    index: 'src/index.ts',
    node: 'src/node.ts',
    testing: 'src/testing/index.ts',
    'testing-node': 'src/testing-node.ts',
  },
  format: 'esm',
  dts: true,
  clean: true,
  target: 'es2022',
  sourcemap: true,
});
