// The entries of the packages' `exports`, as the sources behind them. A condition may hold others:
// what a page imports by `./ws` is another file than what Node does.
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

/** The sources of one entry: its own, and those of the conditions in it. */
function sourcesOf(target, condition) {
  if (typeof target === 'string') {
    return [];
  }
  return Object.entries(target).flatMap(([key, value]) =>
    key === SOURCE ? [{ source: value, condition }] : sourcesOf(value, key),
  );
}
