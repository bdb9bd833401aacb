import { defineConfig } from 'tsup';

export default defineConfig({
  entry: {
    index: 'src/index.ts',
    shm: 'src/shm.ts',
    ws: 'src/ws.ts',
    'ws-page': 'src/ws-page.ts',
    launch: 'src/launch.ts',
    mpi: 'src/mpi.ts',
    testing: 'src/testing/index.ts',
    'testing-node': 'src/testing-node.ts',
  },
  format: 'esm',
  dts: true,
  clean: true,
  target: 'es2022',
  sourcemap: true,
});
