import { defineConfig } from 'tsup';

export default defineConfig({
  entry: ['src/main.ts'],
  format: 'esm',
  dts: false,
  clean: true,
  target: 'es2022',
  sourcemap: true,
});
