// The entries of the packages' `exports`, as the source files behind them. An entry may have
// another file under a condition: a page that imports `./ws` gets another one than Node.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

/** The export condition under which manifests name the source of an entry. */
const SOURCE = '@shardweave/source';

/** All public entries of `packages/*`, by package. */
export function publicEntries(root) {
  return readdirSync(join(root, 'packages')).flatMap((shortName) => {
    const folder = `packages/${shortName}`;
    const manifest = join(root, folder, 'package.json');
    if (!existsSync(manifest)) {
      return [];
    }
    const { name, exports } = JSON.parse(readFileSync(manifest, 'utf8'));
    return Object.entries(exports).flatMap(([entry, target]) =>
      sourcesOf(target).map(({ source, condition }) => ({
        folder,
        name: name + entry.slice(1) + (condition === undefined ? '' : ` (${condition})`),
        path: join(root, folder, source),
      })),
    );
  });
}

/** The source of one entry, and the sources of its other conditions. */
function sourcesOf(target, condition) {
  if (typeof target === 'string') {
    return [];
  }
  return Object.entries(target).flatMap(([key, value]) =>
    key === SOURCE ? [{ source: value, condition }] : sourcesOf(value, key),
  );
}
