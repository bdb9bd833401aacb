import { defineConfig } from 'tsup';
import { declarations } from '../../tooling/tsup/declarations.ts';

// Every declaration file begins with this. The first line brings the types of `using`, which a
// project's own `lib` need not name; the last makes modules of those that export nothing, a
// worker's. The empty interfaces merge with those of the project's libraries, and stand alone where
// it has none: what they name is only handed on.
const DECLARATIONS = `/// <reference lib="esnext.disposable" />
declare global {
  interface Buffer {}
  interface MessagePort {}
  namespace WebAssembly {
    interface Memory {}
  }
}
export {};`;

export default defineConfig({
  entry: {
    index: 'src/index.ts',
    dry: 'src/dry.ts',
    elastic: 'src/elastic.ts',
    'elastic-page': 'src/elastic-page.ts',
    shm: 'src/shm.ts',
    ws: 'src/ws.ts',
    'ws-page': 'src/ws-page.ts',
    'heartbeat-worker': 'src/heartbeat-worker.ts',
    'heartbeat-worker-page': 'src/heartbeat-worker-page.ts',
    'http-head': 'src/http-head.ts',
    launch: 'src/launch.ts',
    mpi: 'src/mpi.ts',
    testing: 'src/testing.ts',
    'testing-node': 'src/testing-node.ts',
  },
  format: 'esm',
  dts: declarations(DECLARATIONS),
  clean: true,
  target: 'es2022',
  sourcemap: true,
});
