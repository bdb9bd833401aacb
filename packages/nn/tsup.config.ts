import { defineConfig } from 'tsup';
import { declarations } from '../../tooling/tsup/declarations.ts';

export default defineConfig({
  entry: {
    index: 'src/index.ts',
    embedding: 'src/embedding.ts',
    flat: 'src/flat.ts',
    preference: 'src/preference.ts',
  },
  format: 'esm',
  dts: declarations(),
  clean: true,
  target: 'es2022',
  sourcemap: true,
});
