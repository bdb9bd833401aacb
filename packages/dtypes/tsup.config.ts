import { defineConfig } from 'tsup';
import { declarations } from '../../tooling/tsup/declarations.ts';

// Every declaration file begins with this. The first line brings the types of `using`, which a
// project's own `lib` need not name. The empty interfaces merge with those of the project's
// libraries, and stand alone where it has none: what they name is only handed on.
const DECLARATIONS = `/// <reference lib="esnext.disposable" />
declare global {
  namespace WebAssembly {
    interface Memory {}
  }
}`;

export default defineConfig({
  entry: ['src/index.ts', 'src/blocks.ts', 'src/float64.ts', 'src/messages.ts', 'src/tree.ts'],
  format: 'esm',
  dts: declarations(DECLARATIONS),
  clean: true,
  target: 'es2022',
  sourcemap: true,
});
