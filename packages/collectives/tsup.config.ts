import { defineConfig } from 'tsup';

export default defineConfig({
  entry: {
    index: 'src/index.ts',
    ws: 'src/ws.ts',
    launch: 'src/launch.ts',
    mpi: 'src/mpi.ts',
    testing: 'src/testing/index.ts',
  },
  format: 'esm',
  dts: true,
  clean: true,
  target: 'es2022',
  sourcemap: true,
});
