// Step `build`: the wasm kernels and every package's dist, by turbo, which rebuilds what changed.
// Starting turbo costs seconds, so the hash of all sources is compared here first. Declarations take
// half of the time and no run reads them: a build without them serves training, and never the tests.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { hashFiles, packageFolders } from './hash-files.mjs';
import { runPnpm } from './install.mjs';
import { ROOT } from './root.mjs';
import { step } from './step.mjs';

const SHARED_INPUTS = ['pnpm-lock.yaml', 'turbo.json', 'tsconfig.base.json', 'tooling/asc'];

/** @param {{needsTypes?: boolean}} [options] default: with declarations, as packages are published */
export async function buildAll({ needsTypes = true } = {}) {
  const folders = packageFolders().filter((folder) => scriptsOf(folder).build);
  const sources = hashFiles([...SHARED_INPUTS, ...folders], (path) => !path.endsWith('.md'));
  const [typed, bare] = [`${sources} with types`, `${sources} without types`];
  await step({
    name: 'build',
    says: `the wasm kernels and ${folders.length} packages, with turbo`,
    key: needsTypes ? typed : bare,
    alsoDone: needsTypes ? [] : [typed],
    isThere: () => folders.every(isBuilt),
    // What follows -- goes to each package's tsup, and into turbo's cache key.
    work: () =>
      runPnpm('build', [
        ...['exec', 'turbo', 'run', 'build', '--output-logs=errors-only'],
        ...(needsTypes ? [] : ['--', '--no-dts']),
      ]),
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
