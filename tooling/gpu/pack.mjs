// Packs what a bare x86-64 Linux machine with only a GPU driver needs to test, measure and train:
// Node, the built packages with their production dependencies, Dawn and the Vulkan loader. The
// programs are without symbols, and the packages without declarations and source maps.
//
//   node tooling/gpu/pack.mjs [FILE]     default: .shardweave/gpu-pack.tar.gz, at most 45 MiB
//
// There: tar -xzf FILE && shardweave-gpu/run.sh [OUT] [--only NAME,...]. See run.sh.
import { execFileSync, spawnSync } from 'node:child_process';
import {
  chmodSync,
  copyFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  realpathSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { runPnpm } from '../setup/install.mjs';
import { ROOT, STATE } from '../setup/root.mjs';

/** A lent machine gets 64 MiB at once, of which the repository's own files take 12. */
const LIMIT_BYTES = 45 * 2 ** 20;

const HERE = dirname(fileURLToPath(import.meta.url));
/** Folders of packages in node_modules that nothing of ours loads, as `package/folder`. */
const LEFT_OUT = [
  ...['darwin-universal', 'linux-arm64', 'win32-x64', 'win32-arm64'].map(
    (platform) => `webgpu/dist/${platform}`,
  ),
];

const file = resolve(process.argv[2] ?? join(STATE, 'gpu-pack.tar.gz'));
const folder = join(STATE, 'gpu-pack', 'shardweave-gpu');

if (process.platform !== 'linux' || process.arch !== 'x64') {
  throw new Error(`pack: expected to run on x86-64 Linux, got ${process.platform} ${process.arch}`);
}
rmSync(dirname(folder), { recursive: true, force: true });
mkdirSync(folder, { recursive: true });
const app = join(folder, 'app');
await runPnpm('gpu-pack', ['--filter', 'shardweave', 'deploy', '--prod', '--legacy', app]);
for (const path of LEFT_OUT) {
  removeFromStore(path);
}
for (const name of ['src', 'test']) {
  rmSync(join(app, name), { recursive: true, force: true });
}
removeUnread(app);
// Programs find each other at the same relative paths as in the repository.
takeFolder('tooling/gpu', ['pack.mjs', 'run.sh']);
takeFolder('bench', ['node_modules', 'reports', '.shardweave']);
mkdirSync(join(app, 'tooling/setup'));
copyFileSync(
  join(ROOT, 'tooling/setup/webgpu-probe.mjs'),
  join(app, 'tooling/setup/webgpu-probe.mjs'),
);
mkdirSync(join(app, 'packages'));
for (const name of readdirSync(join(app, 'node_modules/@shardweave'))) {
  symlinkSync(`../node_modules/@shardweave/${name}`, join(app, 'packages', name));
}
mkdirSync(join(folder, 'bin'));
copyFileSync(realpathSync(process.execPath), join(folder, 'bin/node'));
for (const program of [join(folder, 'bin/node'), ...dawn()]) {
  strip(program);
}
mkdirSync(join(folder, 'lib'));
copyFileSync(vulkanLoader(), join(folder, 'lib/libvulkan.so.1'));
copyFileSync(join(ROOT, 'LICENSE'), join(folder, 'LICENSE'));
writeFileSync(join(folder, 'commit'), git(['rev-parse', 'HEAD']));
copyFileSync(join(HERE, 'run.sh'), join(folder, 'run.sh'));
chmodSync(join(folder, 'run.sh'), 0o755);

// The format is gzip, since a bare machine may have no xz.
mkdirSync(dirname(file), { recursive: true });
const compress = ['--use-compress-program', 'gzip -9'];
execFileSync('tar', ['-cf', file, ...compress, '-C', dirname(folder), 'shardweave-gpu']);
rmSync(dirname(folder), { recursive: true });
const size = statSync(file).size;
console.log(`${file}: ${(size / 1024 / 1024).toFixed(1)} MiB`);
if (size > LIMIT_BYTES) {
  console.error(
    `pack: expected at most ${LIMIT_BYTES / 2 ** 20} MiB, got ${size} bytes. Leave more out in pack.mjs.`,
  );
  process.exitCode = 1;
}

/** Copies a folder of the repository without some of its entries, tests and declarations. */
function takeFolder(path, without) {
  const from = join(ROOT, path);
  const isTaken = (file) =>
    !/\.m?ts$/.test(file) && !without.some((name) => file === join(from, name));
  cpSync(from, join(app, path), { recursive: true, filter: isTaken });
}

/** Removes what only people and compilers read. */
function removeUnread(at) {
  for (const entry of readdirSync(at, { withFileTypes: true })) {
    const path = join(at, entry.name);
    if (entry.isDirectory()) {
      removeUnread(path);
    } else if (/\.(map|md|d\.[cm]?ts)$/.test(entry.name)) {
      rmSync(path);
    }
  }
}

/** Removes the symbols of a program, in a copy, since pnpm links files to its store. */
function strip(program) {
  const { status, error } = spawnSync('strip', ['-o', `${program}.stripped`, program]);
  if (status !== 0) {
    throw new Error(
      `pack: strip failed on ${program} (${error?.message ?? `exit ${status}`}). It comes with binutils.`,
    );
  }
  chmodSync(`${program}.stripped`, 0o755);
  renameSync(`${program}.stripped`, program);
}

function dawn() {
  const store = join(app, 'node_modules/.pnpm');
  const found = readdirSync(store).filter((one) => one.startsWith('webgpu@'));
  return found.map((one) => join(store, one, 'node_modules/webgpu/dist/linux-x64/dawn.node'));
}

/** pnpm keeps the real files in node_modules/.pnpm/<name>@<version>/node_modules/<name>. */
function removeFromStore(path) {
  const [name] = path.split('/');
  const store = join(app, 'node_modules/.pnpm');
  for (const entry of readdirSync(store).filter((one) => one.startsWith(`${name}@`))) {
    rmSync(join(store, entry, 'node_modules', path), { recursive: true, force: true });
  }
}

/** The Vulkan loader of this system. The driver on the other machine brings everything else. */
function vulkanLoader() {
  const names = ['/usr/lib/x86_64-linux-gnu', '/usr/lib64', '/usr/lib'].map((path) =>
    join(path, 'libvulkan.so.1'),
  );
  const found = names.find((path) => existsSync(path));
  if (!found) {
    throw new Error(`pack: no libvulkan.so.1 here. \`npm test\` installs one.`);
  }
  return realpathSync(found);
}

function git(args) {
  return execFileSync('git', args, { cwd: ROOT, encoding: 'utf8' });
}
