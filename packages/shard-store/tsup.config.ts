import { defineConfig } from 'tsup';
import { declarations } from '../../tooling/tsup/declarations.ts';

export default defineConfig({
  entry: {
    index: 'src/index.ts',
    node: 'src/node.ts',
    testing: 'src/testing/index.ts',
    'testing-node': 'src/testing-node.ts',
  },
  format: 'esm',
  dts: declarations(),
  clean: true,
  target: 'es2022',
  sourcemap: true,
});
