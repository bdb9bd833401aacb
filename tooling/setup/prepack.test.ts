// What `prepack` accepts and refuses, in a copy of a built package outside the repository.
import { execFile } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
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

/** What the script says and ends with where `agent` packs. */
function prepack(agent = 'pnpm/10.34.8') {
  const script = join(root, 'tooling/setup/prepack.mjs');
  const options = { cwd: folder, env: { ...process.env, npm_config_user_agent: agent } };
  return new Promise<{ code: number; output: string }>((resolve) => {
    execFile(process.execPath, [script], options, (error, stdout, stderr) => {
      resolve({ code: error ? Number(error.code) : 0, output: stdout + stderr });
    });
  });
}

describe('packing', () => {
  it('takes a build with declarations of the sources as they are', async () => {
    await stamp({ needsTypes: true });
    expect(await prepack()).toEqual({ code: 0, output: '' });
  });

  it('refuses a dist without declarations, whatever the stamp says', async () => {
    await stamp({ needsTypes: true });
    rmSync(join(folder, 'dist/index.d.ts'));
    const { code, output } = await prepack();
    expect(code).toBe(1);
    expect(output).toContain('./dist/index.d.ts of its `exports` or `bin` is not there');
    expect(output).toContain('npm run build');
  });

  it('refuses what was built without declarations, though older ones lie there', async () => {
    await stamp({ needsTypes: false });
    const { code, output } = await prepack();
    expect(code).toBe(1);
    expect(output).toContain('dist is not the build of these sources');
  });

  it('refuses a build of other sources', async () => {
    await stamp({ needsTypes: true });
    writeFileSync(join(folder, 'src/index.ts'), 'export const changed = true;\n');
    const { code, output } = await prepack();
    expect(code).toBe(1);
    expect(output).toContain('dist is not the build of these sources');
  });

  it('refuses npm, which would pack the manifest of a clone', async () => {
    await stamp({ needsTypes: true });
    const { code, output } = await prepack('npm/11.19.1 node/v20.20.0');
    expect(code).toBe(1);
    expect(output).toContain('Pack with pnpm');
  });
});
