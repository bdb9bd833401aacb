// The published packages as a user gets them: packed, installed by npm from their tarballs, and
// each in a project with only what its own manifest asks for.
import { execFile } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { publishedPackages, ROOT, type WorkspacePackage } from './workspace.ts';

const isWindows = process.platform === 'win32';

/**
 * The one dependency from outside that projects link from this clone instead of fetching it,
 * because it is big.
 */
const LINKED = 'webgpu';

/** Packs every published package into `folder`. Returns each package's tarball by name. */
export async function packAll(folder: string): Promise<ReadonlyMap<string, string>> {
  const { packageManager } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
  const filters = publishedPackages().flatMap(({ manifest }) => ['--filter', manifest.name]);
  const pnpm = ['exec', '--yes', '--package', packageManager, '--', 'pnpm'];
  await run('npm', [...pnpm, ...filters, 'pack', '--pack-destination', folder], ROOT);
  return new Map(
    publishedPackages().map(({ manifest: { name, version } }) => [
      name,
      join(folder, `${name.replace('@', '').replace('/', '-')}-${version}.tgz`),
    ]),
  );
}

/**
 * Makes `folder` a project in which npm has installed all published packages from their tarballs,
 * without their optional parts.
 */
export async function installAll(
  tarballs: ReadonlyMap<string, string>,
  folder: string,
): Promise<void> {
  mkdirSync(folder, { recursive: true });
  const dependencies = Object.fromEntries(
    [...tarballs].map(([name, path]) => [name, `file:${path}`]),
  );
  const manifest = { name: 'user', private: true, type: 'module', dependencies };
  writeFileSync(join(folder, 'package.json'), JSON.stringify(manifest, null, 2));
  const options = [
    '--omit=optional',
    '--prefer-offline',
    '--no-audit',
    '--no-fund',
    '--ignore-scripts',
  ];
  await run('npm', ['install', ...options], folder);
}

/**
 * Makes `folder` a project with one package and what the packed manifests ask for, its own and
 * those of the packages below it. Our packages are copied from what `installAll` has made, so that
 * none of them finds anything else beside it. Optional peers are there only if asked for.
 */
export function projectWith(
  name: string,
  { installed, hasOptionalPeers = false }: ProjectOptions,
  folder: string,
): void {
  const target = join(folder, 'node_modules');
  mkdirSync(target, { recursive: true });
  writeFileSync(join(folder, 'package.json'), JSON.stringify({ private: true, type: 'module' }));
  symlinkSync(join(ROOT, 'node_modules', LINKED), join(target, LINKED), 'junction');
  const ours = new Set(publishedPackages().map(({ manifest }) => manifest.name));
  const add = (needed: string): void => {
    const from = join(installed, 'node_modules', needed);
    const to = join(target, needed);
    if (existsSync(to)) {
      return;
    }
    mkdirSync(dirname(to), { recursive: true });
    if (!ours.has(needed)) {
      symlinkSync(from, to, 'junction');
      return;
    }
    cpSync(from, to, { recursive: true });
    const packed = JSON.parse(readFileSync(join(to, 'package.json'), 'utf8')) as PackedManifest;
    const { dependencies, peerDependencies, peerDependenciesMeta } = packed;
    for (const next of Object.keys({ ...dependencies, ...peerDependencies })) {
      if (hasOptionalPeers || peerDependenciesMeta?.[next]?.optional !== true) {
        add(next);
      }
    }
  };
  add(name);
}

export interface ProjectOptions {
  /** The folder that `installAll` has made. */
  readonly installed: string;
  readonly hasOptionalPeers?: boolean;
}

interface PackedManifest {
  readonly dependencies?: Readonly<Record<string, string>>;
  readonly peerDependencies?: Readonly<Record<string, string>>;
  readonly peerDependenciesMeta?: Readonly<Record<string, { readonly optional?: boolean }>>;
}

/**
 * The first `js` or `ts` example of a package's README with its language; undefined where there is
 * none.
 */
export function firstExample(
  one: WorkspacePackage,
): { language: string; code: string } | undefined {
  const readme = readFileSync(join(ROOT, one.folder, 'README.md'), 'utf8');
  const match = /^```(js|ts|javascript|typescript)\b[^\n]*\n([\s\S]*?)^```/m.exec(readme);
  return match ? { language: match[1]!.startsWith('j') ? 'js' : 'ts', code: match[2]! } : undefined;
}

/** Runs a command. Resolves to its output, and rejects with it where the exit code is not 0. */
export function run(file: string, args: readonly string[], cwd: string): Promise<string> {
  // A user does not have the variables of the npm that started the tests, such as its local prefix.
  const clean = Object.entries(process.env).filter(
    ([name]) => !/^(npm_(?!config_(registry|cache|userconfig))|VITEST|NODE_ENV$)/i.test(name),
  );
  const options = { cwd, env: Object.fromEntries(clean), maxBuffer: 64 << 20 };
  const shell = isWindows && file === 'npm';
  return new Promise((resolve, reject) => {
    execFile(file, args, { ...options, shell }, (error, stdout, stderr) => {
      const output = `${stdout}${stderr}`;
      if (error) {
        reject(new Error(`${file} ${args.join(' ')}: ${error.code}\n${output}`));
      } else {
        resolve(output);
      }
    });
  });
}
