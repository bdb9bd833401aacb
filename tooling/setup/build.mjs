// Step `build`: the wasm kernels and every package's dist, by turbo, which rebuilds what changed.
// Starting turbo costs seconds, so the hash of all sources is compared here first.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { hashFiles, packageFolders } from './hash-files.mjs';
import { runPnpm } from './install.mjs';
import { ROOT } from './root.mjs';
import { step } from './step.mjs';

const SHARED_INPUTS = ['pnpm-lock.yaml', 'turbo.json', 'tsconfig.base.json', 'tooling/asc'];

export async function buildAll() {
  const folders = packageFolders().filter((folder) => scriptsOf(folder).build);
  await step({
    name: 'build',
    says: `the wasm kernels and ${folders.length} packages, with turbo`,
    key: hashFiles([...SHARED_INPUTS, ...folders], (path) => !path.endsWith('.md')),
    isThere: () => folders.every(isBuilt),
    work: () =>
      runPnpm('build', ['exec', 'turbo', 'run', 'generate', 'build', '--output-logs=errors-only']),
  });
}

function scriptsOf(folder) {
  const manifest = join(ROOT, folder, 'package.json');
  return existsSync(manifest) ? (JSON.parse(readFileSync(manifest, 'utf8')).scripts ?? {}) : {};
}

function isBuilt(folder) {
  const isFull = (path) => existsSync(path) && readdirSync(path).length > 0;
  if (!isFull(join(ROOT, folder, 'dist'))) return false;
  const hasKernels = existsSync(join(ROOT, folder, 'assembly'));
  return !hasKernels || isFull(join(ROOT, folder, 'src/generated'));
}
