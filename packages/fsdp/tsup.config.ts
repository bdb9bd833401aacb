import { defineConfig } from 'tsup';

export default defineConfig({
  entry: { index: 'src/index.ts' },
  format: 'esm',
  // The types of `using`, which a project's own `lib` need not name.
  dts: { banner: '/// <reference lib="esnext.disposable" />' },
  clean: true,
  target: 'es2022',
  sourcemap: true,
});
