import { defineConfig } from 'tsup';
import { madeModulesWithLicenses } from '../../tooling/tsup/licenses.ts';

export default defineConfig({
  entry: ['src/main.ts'],
  format: 'esm',
  dts: false,
  clean: true,
  target: 'es2022',
  sourcemap: true,
  esbuildPlugins: [madeModulesWithLicenses()],
});
