// This bundles a program and the workspace's sources into one file that plain Node runs.

import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';

// The CommonJS packages in the bundle call require.
const BANNER =
  "import { createRequire as bundleRequire } from 'node:module'; const require = bundleRequire(import.meta.url);";

/** Bundles `source` into `outfile`, whose name ends in .mjs. */
export async function bundleProgram(source: URL, outfile: string): Promise<void> {
  await build({
    entryPoints: [fileURLToPath(source)],
    bundle: true,
    platform: 'node',
    format: 'esm',
    target: 'node20',
    conditions: ['@shardweave/source'],
    external: ['bufferutil', 'utf-8-validate', 'koffi'],
    banner: { js: BANNER },
    outfile,
    logLevel: 'error',
  });
}
