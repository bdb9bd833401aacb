// The collectives package with a changed constant. It is bundled from source once for each value,
// so that ranks with any of them can run side by side.
import { mkdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const SOURCE = join(ROOT, 'packages/collectives/src');
const ENTRIES = { memory: 'index.ts', shm: 'shm.ts', ws: 'ws.ts' };

/**
 * @param {{ folder: string, file: string, constant: string, value: string, transport: string }}
 * variant
 *   `value` is an expression that replaces the constant's own
 * @returns {Promise<string>} the URL of a module with the transport's exports
 */
export async function bundleVariant({ folder, file, constant, value, transport }) {
  const { build } = createRequire(join(ROOT, 'package.json'))('esbuild');
  const target = join(SOURCE, file);
  const declaration = new RegExp(`(const ${constant} =)[^;]*;`);
  if (!declaration.test(readFileSync(target, 'utf8'))) {
    throw new Error(`${file}: expected a constant ${constant}`);
  }
  const outfile = join(folder, `${constant}-${value.replace(/\W+/g, '_')}-${transport}.mjs`);
  mkdirSync(folder, { recursive: true });
  await build({
    entryPoints: [join(SOURCE, ENTRIES[transport])],
    outfile,
    bundle: true,
    platform: 'node',
    format: 'esm',
    conditions: ['@shardweave/source'],
    external: ['koffi', 'bufferutil', 'utf-8-validate'],
    // The ws library loads Node's modules by `require`.
    banner: {
      js: "import { createRequire as r } from 'node:module'; const require = r(import.meta.url);",
    },
    logLevel: 'error',
    plugins: [
      {
        name: 'constant',
        setup: ({ onLoad }) =>
          onLoad({ filter: /\.ts$/ }, ({ path }) =>
            path === target
              ? {
                  contents: readFileSync(path, 'utf8').replace(declaration, `$1 ${value};`),
                  loader: 'ts',
                }
              : undefined,
          ),
      },
    ],
  });
  return pathToFileURL(outfile).href;
}
