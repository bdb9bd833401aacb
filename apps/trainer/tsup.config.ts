import { defineConfig } from 'tsup';
import { declarations } from '../../tooling/tsup/declarations.ts';
import { madeModulesWithLicenses } from '../../tooling/tsup/licenses.ts';

export default defineConfig({
  entry: { main: 'src/main.ts', index: 'src/index.ts' },
  format: 'esm',
  dts: { entry: { index: 'src/index.ts' }, ...declarations() },
  clean: true,
  target: 'es2022',
  sourcemap: true,
  esbuildPlugins: [madeModulesWithLicenses()],
});
