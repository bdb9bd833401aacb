// The published packages as a user gets them: packed, and installed from their tarballs into empty
// projects, each with only what its own manifest asks for.
import { execFile } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { publishedPackages, ROOT, type WorkspacePackage } from './workspace.ts';

const isWindows = process.platform === 'win32';

/** Dependencies from outside that a project links from this clone instead of fetching: it is big. */
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
      join(folder, `${name.slice(1).replace('/', '-')}-${version}.tgz`),
    ]),
  );
}

/** Makes `folder` a project in which one package is installed with its dependencies and peers. */
export async function installFromTarballs(
  one: WorkspacePackage,
  tarballs: ReadonlyMap<string, string>,
  folder: string,
): Promise<void> {
  mkdirSync(folder, { recursive: true });
  const dependencies = Object.fromEntries(
    [...closure(one.manifest.name)].map((name) => [name, `file:${tarballs.get(name)}`]),
  );
  const manifest = { name: 'user', private: true, type: 'module', dependencies };
  writeFileSync(join(folder, 'package.json'), JSON.stringify(manifest, null, 2));
  const options = ['--prefer-offline', '--no-audit', '--no-fund', '--ignore-scripts'];
  await run('npm', ['install', ...options], folder);
  const target = join(folder, 'node_modules', LINKED);
  if (!existsSync(target)) {
    symlinkSync(join(ROOT, 'node_modules', LINKED), target, 'junction');
  }
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

/** The package itself, its workspace dependencies and its peers, and theirs. */
function closure(name: string, found = new Set<string>()): ReadonlySet<string> {
  const one = publishedPackages().find(({ manifest }) => manifest.name === name);
  if (!one || found.has(name)) {
    return found;
  }
  found.add(name);
  const { dependencies, peerDependencies } = one.manifest;
  for (const next of Object.keys({ ...dependencies, ...peerDependencies })) {
    closure(next, found);
  }
  return found;
}
