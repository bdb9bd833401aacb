// Puts the bench into the pack. Our part is copied as it is and uses the pack's own packages. The
// libraries that it is compared with become one file each, because as packages they would be larger
// than the whole pack may be.
import { copyFileSync, cpSync, existsSync, mkdirSync, readdirSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { build } from 'esbuild';
import { ROOT } from '../setup/root.mjs';

/** Folders that are large and not needed there. */
const LEFT_OUT = ['node_modules', 'reports', '.shardweave'];
const RIVALS = ['jax', 'tfjs'];
/** The bench reads the library's version from this file at run time. */
const MANIFEST = '@jax-js/jax/package.json';

/** @param {string} app the pack's folder of programs; the bench goes to `bench` in it */
export async function bundleBench(app) {
  const from = join(ROOT, 'bench');
  const to = join(app, 'bench');
  const isTaken = (path) => !LEFT_OUT.some((name) => path === join(from, name));
  cpSync(from, to, { recursive: true, filter: isTaken });
  // The bench finds the packages at the same relative paths as in the repository.
  mkdirSync(join(app, 'packages'));
  for (const name of readdirSync(join(app, 'node_modules/@shardweave'))) {
    symlinkSync(`../node_modules/@shardweave/${name}`, join(app, 'packages', name));
  }
  if (!existsSync(join(from, 'node_modules'))) {
    console.error('pack: the bench goes without its rivals: install them in bench/ first');
    return;
  }
  for (const name of RIVALS) {
    await bundle(from, to, `engines/${name}.mjs`);
  }
  const manifest = join(to, 'node_modules', MANIFEST);
  mkdirSync(join(manifest, '..'), { recursive: true });
  copyFileSync(join(from, 'node_modules', MANIFEST), manifest);
}

async function bundle(from, to, path) {
  await build({
    entryPoints: [join(from, path)],
    outfile: join(to, path),
    bundle: true,
    platform: 'node',
    format: 'esm',
    target: 'node20',
    minify: true,
    external: ['webgpu', './serve.mjs', './webgpu-globals.mjs', '../gpt-shape.mjs'],
    // CommonJS parts of the rivals load Node's modules by `require`.
    banner: {
      js: "import { createRequire as packRequire } from 'node:module'; const require = packRequire(import.meta.url);",
    },
    logLevel: 'error',
  });
}
