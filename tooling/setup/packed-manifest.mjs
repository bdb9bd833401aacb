// The package.json that goes into a tarball. pnpm calls this by .pnpmfile.cjs, when it has written
// versions in the place of `workspace:` and `catalog:`.

import { readFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { ROOT } from './root.mjs';

/** The condition that leads to sources, which are not packed. */
const SOURCE = '@shardweave/source';
/** What only a clone can use. */
const OF_A_CLONE = ['asc', 'workers', 'scripts', 'devDependencies'];

/**
 * A manifest without what only a clone can use, and with the place that the repository's own
 * manifest names.
 */
export function packedManifest(manifest, folder) {
  const root = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
  const directory = relative(ROOT, folder).replaceAll('\\', '/');
  const kept = Object.entries(manifest).filter(([field]) => !OF_A_CLONE.includes(field));
  return {
    ...Object.fromEntries(kept),
    repository: { ...root.repository, directory },
    homepage: root.homepage.replace('#', `/tree/main/${directory}#`),
    bugs: root.bugs,
    exports: withoutSource(manifest.exports),
  };
}

function withoutSource(exports) {
  if (typeof exports !== 'object') {
    return exports;
  }
  const kept = Object.entries(exports).filter(([condition]) => condition !== SOURCE);
  return Object.fromEntries(kept.map(([condition, target]) => [condition, withoutSource(target)]));
}
