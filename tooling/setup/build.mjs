// Step `build` makes the wasm kernels and every package's dist by turbo, which rebuilds what has
// changed. Starting turbo takes seconds, so the hash of all sources is compared here first.
// Declarations take half of the time. Runs do not read them, so a build without them suffices for
// training, but neither for tests nor for packing.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { hashFiles, packageFolders } from './hash-files.mjs';
import { runPnpm } from './install.mjs';
import { ROOT } from './root.mjs';
import { readStamp, step } from './step.mjs';

const SHARED_INPUTS = [
  'pnpm-lock.yaml',
  'turbo.json',
  'tsconfig.base.json',
  'tooling/asc',
  'tooling/tsup',
];

/**
 * @param {{needsTypes?: boolean}} [options] default: with declarations, as packages are published
 */
export async function buildAll({ needsTypes = true } = {}) {
  const folders = builtFolders();
  const typed = buildKey({ needsTypes: true });
  await step({
    name: 'build',
    says: `the wasm kernels and ${folders.length} packages, with turbo`,
    key: buildKey({ needsTypes }),
    alsoDone: needsTypes ? [] : [typed],
    isThere: () =>
      folders.every(
        (folder) => isBuilt(folder) && (!needsTypes || missingFiles(folder).length === 0),
      ),
    // What follows -- goes to the tsup of each package and into turbo's cache key.
    work: () =>
      runPnpm('build', [
        ...['exec', 'turbo', 'run', 'build', '--output-logs=errors-only'],
        ...(needsTypes ? [] : ['--', '--no-dts']),
      ]),
  });
}

/** The content of the stamp that a build of the present sources leaves. */
export function buildKey({ needsTypes }) {
  const inputs = [...SHARED_INPUTS, ...builtFolders()];
  const sources = hashFiles(inputs, (path) => !path.endsWith('.md'));
  return `${sources} ${needsTypes ? 'with' : 'without'} types`;
}

/** Whether the last build was one of the present sources, with declarations. */
export function isBuiltWhole() {
  return readStamp('build') === buildKey({ needsTypes: true });
}

/**
 * The files that a package's `exports` and `bin` name and that its folder lacks, sources excepted.
 */
export function missingFiles(folder) {
  const { exports = {}, bin = {} } = manifestOf(folder);
  const named = filesNamedIn({ exports, bin });
  return named.filter((path) => !existsSync(join(ROOT, folder, path)));
}

/** @returns {string[]} every path under `dist` in a tree of conditions */
function filesNamedIn(exports) {
  if (typeof exports === 'string') {
    return exports.startsWith('./dist/') ? [exports] : [];
  }
  return Object.values(exports).flatMap(filesNamedIn);
}

function builtFolders() {
  return packageFolders().filter((folder) => manifestOf(folder).scripts?.build);
}

function manifestOf(folder) {
  const path = join(ROOT, folder, 'package.json');
  return existsSync(path) ? JSON.parse(readFileSync(path, 'utf8')) : {};
}

function isBuilt(folder) {
  const isFull = (path) => existsSync(path) && readdirSync(path).length > 0;
  if (!isFull(join(ROOT, folder, 'dist'))) {
    return false;
  }
  const generates = manifestOf(folder).scripts?.generate !== undefined;
  return !generates || isFull(join(ROOT, folder, 'src/generated'));
}
