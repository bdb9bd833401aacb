// What an install of all published packages weighs. npm's lock file says what belongs to it; what
// the tests leave out of theirs because it is big is weighed in this clone.
import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { ROOT } from './workspace.ts';

export interface Weight {
  readonly packages: number;
  /** The sum of the files' lengths. A disk with blocks of 4 KiB takes a few megabytes more. */
  readonly bytes: number;
}

interface LockedPackage {
  readonly version: string;
  readonly os?: readonly string[];
  readonly cpu?: readonly string[];
}

/**
 * Weighs the install in `folder`, which has no optional dependencies: as it lies there, and as it
 * would be with all that npm adds on this machine.
 */
export function weighInstall(folder: string): {
  readonly whole: Weight;
  readonly required: Weight;
} {
  const lock = JSON.parse(readFileSync(join(folder, 'package-lock.json'), 'utf8')) as {
    readonly packages: Readonly<Record<string, LockedPackage>>;
  };
  const locked = Object.entries(lock.packages).filter(([path]) => path !== '');
  const required = locked.filter(([path]) => existsSync(join(folder, path)));
  const added = locked.filter(
    ([path, { os = [process.platform], cpu = [process.arch] }]) =>
      !existsSync(join(folder, path)) &&
      os.includes(process.platform) &&
      cpu.includes(process.arch),
  );
  const requiredBytes = sum(required.map(([path]) => bytesIn(join(folder, path))));
  const addedBytes = sum(added.map(([path, { version }]) => bytesIn(inThisClone(path, version))));
  return {
    required: { packages: required.length, bytes: requiredBytes },
    whole: { packages: required.length + added.length, bytes: requiredBytes + addedBytes },
  };
}

/** The folder of a package that the clone has too, perhaps in another version. */
function inThisClone(path: string, version: string): string {
  const name = path.replace(/^.*node_modules\//, '');
  const store = join(ROOT, 'node_modules/.pnpm');
  const stored = readdirSync(store).filter((entry) =>
    entry.startsWith(`${name.replace('/', '+')}@`),
  );
  const found = stored.find((entry) => entry.split('@').at(-1) === version) ?? stored[0];
  if (found === undefined) {
    throw new Error(`${name}: expected it in this clone's node_modules/.pnpm, since npm adds it`);
  }
  return join(store, found, 'node_modules', name);
}

/** The bytes of a package's files, without those of packages inside it. */
function bytesIn(folder: string): number {
  const entries = readdirSync(folder, { withFileTypes: true });
  return sum(
    entries.map((entry) => {
      const path = join(folder, entry.name);
      if (entry.isDirectory()) {
        return entry.name === 'node_modules' ? 0 : bytesIn(path);
      }
      return entry.isFile() ? statSync(path).size : 0;
    }),
  );
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
