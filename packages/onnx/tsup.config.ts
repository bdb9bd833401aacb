import { defineConfig } from 'tsup';
import { declarations } from '../../tooling/tsup/declarations.ts';

export default defineConfig({
  entry: { index: 'src/index.ts', 'proto-message': 'src/proto-message.ts' },
  format: 'esm',
  dts: declarations(),
  clean: true,
  target: 'es2022',
  sourcemap: true,
});
