// The published packages as a user gets them: packed, installed by npm from their tarballs, and
// each in a project with only what its own manifest asks for.
import { execFile } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { publishedPackages, ROOT, type WorkspacePackage } from './workspace.ts';

const isWindows = process.platform === 'win32';

/**
 * Dependencies from outside that a project links from this clone instead of fetching: it is big.
 */
const LINKED = 'webgpu';

/** Packs every published package into `folder`; gives the tarball of each by package name. */
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
 * without what they can do without.
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
 * Makes `folder` a project that has one package and what the packed manifests of it and of those
 * below it ask for, out of what `installAll` has made: copies of ours, so that none finds more
 * beside it. Peers that are optional are there only if asked for.
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

/** The first `js` or `ts` example of a package's README, with the language; or `undefined`. */
export function firstExample(
  one: WorkspacePackage,
): { language: string; code: string } | undefined {
  const readme = readFileSync(join(ROOT, one.folder, 'README.md'), 'utf8');
  const match = /^```(js|ts|javascript|typescript)\b[^\n]*\n([\s\S]*?)^```/m.exec(readme);
  return match ? { language: match[1]!.startsWith('j') ? 'js' : 'ts', code: match[2]! } : undefined;
}

/** Runs a command; resolves with its output, rejects with it where the exit code is not 0. */
export function run(file: string, args: readonly string[], cwd: string): Promise<string> {
  // Variables of the npm that started the tests (its local prefix, say) are not a user's.
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
