// The workspace as the checks see it: its packages, their manifests and their source files.
import { execFileSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join, posix } from 'node:path';
import { fileURLToPath } from 'node:url';

export const ROOT = fileURLToPath(new URL('../../', import.meta.url)).replace(/[/\\]$/, '');

export type Manifest = {
  readonly name: string;
  readonly version: string;
  readonly private?: boolean;
  readonly exports?: Readonly<Record<string, unknown>>;
  readonly dependencies?: Readonly<Record<string, string>>;
  readonly peerDependencies?: Readonly<Record<string, string>>;
  readonly peerDependenciesMeta?: Readonly<Record<string, { readonly optional?: boolean }>>;
  readonly optionalDependencies?: Readonly<Record<string, string>>;
  readonly devDependencies?: Readonly<Record<string, string>>;
  readonly [field: string]: unknown;
};

export type WorkspacePackage = {
  /** Its folder relative to the root, such as `packages/dtypes`. */
  readonly folder: string;
  /** The last part of that path, such as `dtypes`. */
  readonly shortName: string;
  readonly manifest: Manifest;
};

/** The packages under `packages/` and `apps/`, by folder name. */
export function workspacePackages(): readonly WorkspacePackage[] {
  return ['packages', 'apps'].flatMap((parent) =>
    readdirSync(join(ROOT, parent))
      .filter((name) => existsSync(join(ROOT, parent, name, 'package.json')))
      .map((name) => ({
        folder: `${parent}/${name}`,
        shortName: name,
        manifest: JSON.parse(readFileSync(join(ROOT, parent, name, 'package.json'), 'utf8')),
      })),
  );
}

/** The packages that are published. */
export function publishedPackages(): readonly WorkspacePackage[] {
  return workspacePackages().filter(({ manifest }) => manifest.private !== true);
}

/** The published packages that code imports. The others are for the command line. */
export function libraries(): readonly WorkspacePackage[] {
  return publishedPackages().filter(({ manifest }) => manifest.bin === undefined);
}

/** The TypeScript files of a package's `src`, relative to the root and without generated ones. */
export function sourceFiles({ folder }: WorkspacePackage): readonly string[] {
  return readdirSync(join(ROOT, folder, 'src'), { recursive: true, encoding: 'utf8' })
    .map((name) => `${folder}/src/${name.replaceAll('\\', '/')}`)
    .filter((path) => path.endsWith('.ts') && !path.includes('/generated/'));
}

/** The modules that a file imports or re-exports, statically or by `import()`. */
export function importsOf(path: string): readonly string[] {
  const code = readFileSync(join(ROOT, path), 'utf8').replaceAll(/^\s*(\/\/|\*).*$/gm, '');
  const pattern = /\b(?:from|import)\s*\(?\s*(['"])([^'"\n]+)\1/g;
  return [...code.matchAll(pattern)].map((match) => match[2] ?? '');
}

/**
 * Whether an import or re-export concerns types only, so that nothing of it is left at run time.
 */
function isOfTypes(clause: string): boolean {
  const names = clause.replaceAll(/[{}\s]+/g, ' ').trim();
  return (
    names.startsWith('type ') || names.split(',').every((name) => /^\s*(type .*)?$/.test(name))
  );
}

/**
 * The files of the workspace that a file imports statically by path. Where `types` is true, imports
 * of types count too.
 */
export function neighboursOf(path: string, options: { readonly types: boolean }): string[] {
  const code = readFileSync(join(ROOT, path), 'utf8').replaceAll(/^\s*(\/\/|\*).*$/gm, '');
  const pattern = /^(?:import|export)\b([^;'"]*?)(?:\bfrom\s*)?'(\.[^']+)'/gm;
  return [...code.matchAll(pattern)].flatMap(([, clause, specifier]) =>
    !options.types && clause!.trim() !== '' && isOfTypes(clause!)
      ? []
      : [posix.join(posix.dirname(path), specifier!.replace(/\.js$/, '.ts'))],
  );
}

/**
 * The room of a source file: its folder below `src`, such as `flat/stores`, or its own name where
 * it lies in `src` itself, such as `module.ts`.
 */
export function roomOf({ folder }: WorkspacePackage, path: string): string {
  const below = posix.relative(`${folder}/src`, path);
  return below.includes('/') ? posix.dirname(below) : below;
}

/** The rooms of a package, each with those that its files import. */
export function roomsOf(
  one: WorkspacePackage,
  options: { readonly types: boolean },
): ReadonlyMap<string, ReadonlySet<string>> {
  const paths = sourceFiles(one);
  const rooms = new Map<string, Set<string>>(paths.map((path) => [roomOf(one, path), new Set()]));
  for (const path of paths) {
    const room = roomOf(one, path);
    for (const target of neighboursOf(path, options).map((file) => roomOf(one, file))) {
      if (target !== room && rooms.has(target)) {
        rooms.get(room)!.add(target);
      }
    }
  }
  return rooms;
}

/** The circles of imports, each as the sorted list of files that all reach one another. */
export function circlesAmong(
  paths: readonly string[],
  neighbours: (path: string) => readonly string[],
): string[][] {
  const reached = new Map(paths.map((path) => [path, reachedFrom(path, neighbours)]));
  const circles = paths.map((path) =>
    paths.filter((other) => reached.get(path)!.has(other) && reached.get(other)?.has(path)).sort(),
  );
  const found = circles.filter((circle) => circle.length > 0);
  return [...new Map(found.map((circle) => [circle.join(), circle])).values()];
}

function reachedFrom(path: string, neighbours: (path: string) => readonly string[]): Set<string> {
  const seen = new Set<string>();
  const left = [...neighbours(path)];
  for (let next = left.pop(); next !== undefined; next = left.pop()) {
    if (!seen.has(next)) {
      seen.add(next);
      left.push(...neighbours(next));
    }
  }
  return seen;
}

/** The package of an import, `@scope/name` or `name`, without the path after it. */
export function packageOf(specifier: string): string {
  return specifier
    .split('/')
    .slice(0, specifier.startsWith('@') ? 2 : 1)
    .join('/');
}

/** The files under version control that exist, relative to the root. */
export function trackedFiles(): readonly string[] {
  return execFileSync('git', ['ls-files', '-z'], { cwd: ROOT, encoding: 'utf8' })
    .split('\0')
    .filter((path) => path !== '' && existsSync(join(ROOT, path)));
}
