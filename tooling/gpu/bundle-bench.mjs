// Puts the bench into the pack as one file: the libraries it compares with are large as packages and
// small as what the bench uses of them.
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { build } from 'esbuild';
import { ROOT } from '../setup/root.mjs';

const ENTRIES = ['bench/src/main.ts', 'bench/main.ts'];

/** Writes `main.mjs` into `folder`; does nothing while there is no bench. */
export async function bundleBench(folder) {
  const entry = ENTRIES.find((path) => existsSync(join(ROOT, path)));
  if (!entry) return;
  await build({
    entryPoints: [join(ROOT, entry)],
    outfile: join(folder, 'main.mjs'),
    bundle: true,
    platform: 'node',
    format: 'esm',
    target: 'node20',
    // Ours and Dawn are packages of the pack itself.
    external: ['webgpu', '@shardweave/*'],
    logLevel: 'warning',
  });
}
