// What `prepack` accepts and refuses. npm's own `pack` runs in a copy of a built package outside
// the repository.
import { execFile } from 'node:child_process';
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';

const HERE = fileURLToPath(new URL('.', import.meta.url));
const PACKAGE = fileURLToPath(new URL('../../packages/dtypes/', import.meta.url));

let root: string;
let folder: string;

beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'shardweave-prepack-'));
  folder = join(root, 'packages/dtypes');
  for (const name of ['apps', 'packages']) {
    mkdirSync(join(root, name));
  }
  cpSync(HERE, join(root, 'tooling/setup'), { recursive: true });
  cpSync(PACKAGE, folder, { recursive: true, filter: (path) => !path.endsWith('node_modules') });
  // Whatever the last build of the repository was, the copy has a whole one.
  mkdirSync(join(folder, 'dist'), { recursive: true });
  for (const name of ['index.js', 'index.d.ts']) {
    writeFileSync(join(folder, 'dist', name), '');
  }
});

afterEach(() => rmSync(root, { recursive: true }));

/** Writes the stamp that set-up leaves after a build of the present sources. */
async function stamp({ needsTypes }: { needsTypes: boolean }) {
  const { buildKey } = await import(pathToFileURL(join(root, 'tooling/setup/build.mjs')).href);
  mkdirSync(join(root, '.shardweave/stamps'), { recursive: true });
  writeFileSync(join(root, '.shardweave/stamps/build'), buildKey({ needsTypes }));
}

function pack() {
  return new Promise<{ code: number; output: string; hasTarball: boolean }>((resolve) => {
    const shell = process.platform === 'win32';
    execFile('npm', ['pack'], { cwd: folder, shell }, (error, stdout, stderr) => {
      const hasTarball = existsSync(join(folder, 'shardweave-dtypes-0.1.0.tgz'));
      resolve({ code: error ? Number(error.code) : 0, output: stdout + stderr, hasTarball });
    });
  });
}

describe('packing', () => {
  it('takes a build with declarations of the sources as they are', async () => {
    await stamp({ needsTypes: true });
    expect(await pack()).toMatchObject({ code: 0, hasTarball: true });
  });

  it('refuses a dist without declarations, whatever the stamp says', async () => {
    await stamp({ needsTypes: true });
    rmSync(join(folder, 'dist/index.d.ts'));
    const { code, output, hasTarball } = await pack();
    expect({ code, hasTarball }).toEqual({ code: 1, hasTarball: false });
    expect(output).toContain('./dist/index.d.ts of its `exports` or `bin` is not there');
    expect(output).toContain('npm run build');
  });

  it('refuses what was built without declarations, though older ones lie there', async () => {
    await stamp({ needsTypes: false });
    const { code, output, hasTarball } = await pack();
    expect({ code, hasTarball }).toEqual({ code: 1, hasTarball: false });
    expect(output).toContain('dist is not the build of these sources');
  });

  it('refuses a build of other sources', async () => {
    await stamp({ needsTypes: true });
    writeFileSync(join(folder, 'src/index.ts'), 'export const changed = true;\n');
    const { code, output, hasTarball } = await pack();
    expect({ code, hasTarball }).toEqual({ code: 1, hasTarball: false });
    expect(output).toContain('dist is not the build of these sources');
  });

  it('refuses npm where a range is one that only pnpm turns into a version', async () => {
    const path = join(folder, 'package.json');
    const manifest = JSON.parse(readFileSync(path, 'utf8'));
    const peerDependencies = { '@shardweave/nn': 'workspace:^' };
    writeFileSync(path, JSON.stringify({ ...manifest, peerDependencies }));
    await stamp({ needsTypes: true });
    const { code, output, hasTarball } = await pack();
    expect({ code, hasTarball }).toEqual({ code: 1, hasTarball: false });
    expect(output).toContain('Pack with pnpm');
  });
});
