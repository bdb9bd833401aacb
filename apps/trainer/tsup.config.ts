import { defineConfig } from 'tsup';
import { pageText } from '../../tooling/tsup/page-text.ts';

export default defineConfig({
  entry: ['src/main.ts'],
  format: 'esm',
  dts: false,
  clean: true,
  target: 'es2022',
  sourcemap: true,
  esbuildPlugins: [pageText],
});
