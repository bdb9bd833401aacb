// `npm run docs` makes the API reference of all packages as pages, from the docstrings in the
// sources. The README of a package is its front page. A warning, such as one about a broken link,
// is an error.
import { mkdirSync, rmSync } from 'node:fs';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Application } from 'typedoc';
import { publicEntries } from './public-entries.mjs';

const ROOT = fileURLToPath(new URL('../../', import.meta.url));
const OUTPUT = join(ROOT, '.shardweave/docs');
const PARTS = join(ROOT, '.shardweave/docs-parts');

/**
 * Options of every application. The pages do not link to sources, since forks have no common
 * address.
 */
const COMMON = {
  tsconfig: join(ROOT, 'tsconfig.base.json'),
  disableSources: true,
  excludePrivate: true,
  excludeInternal: true,
  includeVersion: true,
  skipErrorChecking: true, // `npm test` checks types
  treatWarningsAsErrors: true,
};

/**
 * Converts each package to a file of JSON. Typedoc makes pages of several packages out of such
 * files.
 */
async function convertPackages() {
  const entries = publicEntries(ROOT);
  const all = await Application.bootstrap({
    ...COMMON,
    entryPoints: entries.map(({ path }) => path),
  });
  const points = all.getEntryPoints();
  const parts = [];
  for (const folder of new Set(entries.map((entry) => entry.folder))) {
    const own = entries.filter((entry) => entry.folder === folder);
    const app = await Application.bootstrap({
      ...COMMON,
      name: own[0].name,
      entryPoints: own.map(({ path }) => path),
      readme: join(ROOT, folder, 'README.md'),
    });
    // One program serves all packages.
    const named = own.map(({ name, path }) => ({
      ...points.find(({ sourceFile }) => sourceFile.fileName === path),
      displayName: name,
    }));
    const project = app.converter.convert(named);
    app.validate(project);
    const part = join(PARTS, `${basename(folder)}.json`);
    await app.generateJson(project, part);
    if (app.logger.hasErrors() || app.logger.hasWarnings()) {
      process.exitCode = 1;
    }
    parts.push(part);
  }
  return parts;
}

rmSync(OUTPUT, { recursive: true, force: true });
mkdirSync(PARTS, { recursive: true });
const app = await Application.bootstrap({
  ...COMMON,
  name: 'shardweave',
  entryPointStrategy: 'merge',
  entryPoints: await convertPackages(),
  readme: join(ROOT, 'README.md'),
});
const project = await app.convert();
await app.generateDocs(project, OUTPUT);
rmSync(PARTS, { recursive: true });
if (app.logger.hasErrors() || app.logger.hasWarnings()) {
  process.exitCode = 1;
}
