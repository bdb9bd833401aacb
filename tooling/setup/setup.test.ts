// The set-up of the root commands, run for real in a copy of its folder outside the repository.
import { execFile } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { transform } from 'esbuild';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

const HERE = fileURLToPath(new URL('.', import.meta.url));

let root: string;

beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'shardweave-setup-'));
  cpSync(HERE, join(root, 'tooling/setup'), { recursive: true });
  for (const folder of ['packages', 'apps']) {
    mkdirSync(join(root, folder));
  }
  writeFileSync(join(root, 'package.json'), '{ "packageManager": "pnpm@10.34.8" }');
});

afterEach(() => rmSync(root, { recursive: true }));

/** Imports a module of the copy, for which the root is the temporary folder. */
const load = (name: string) => import(pathToFileURL(join(root, 'tooling/setup', name)).href);

describe('a step', () => {
  const said: string[] = [];
  beforeEach(() => {
    said.length = 0;
    vi.spyOn(process.stderr, 'write').mockImplementation((text) => said.push(`${text}`) > 0);
  });
  afterEach(() => vi.restoreAllMocks());

  interface StepOptions {
    readonly key?: string;
    readonly alsoDone?: readonly string[];
    readonly isThere?: boolean;
    readonly fails?: boolean;
  }

  /** Runs the step once, and tells whether it did its work. */
  async function didWork(options: StepOptions = {}) {
    const { step } = await load('step.mjs');
    let worked = false;
    await step({
      name: 'one',
      says: 'does one thing',
      key: options.key ?? 'a',
      alsoDone: options.alsoDone ?? [],
      isThere: () => options.isThere ?? true,
      work: () => {
        worked = true;
        if (options.fails) {
          throw new Error('on purpose');
        }
      },
    });
    return worked;
  }

  it('is skipped when it was done for the same inputs, and only then', async () => {
    expect(await didWork()).toBe(true);
    expect(said[0]).toBe('set-up: one: does one thing\n');
    said.length = 0;
    expect(await didWork()).toBe(false);
    expect(said).toEqual([]);
    expect(await didWork({ key: 'b' })).toBe(true);
    expect(await didWork({ key: 'a' })).toBe(true);
  });

  it('is skipped when work that includes it was done, and not the other way round', async () => {
    expect(await didWork({ key: 'part' })).toBe(true);
    expect(await didWork({ key: 'whole' })).toBe(true);
    expect(await didWork({ key: 'part', alsoDone: ['whole'] })).toBe(false);
    expect(await didWork({ key: 'whole' })).toBe(false);
    expect(await didWork({ key: 'part' })).toBe(true);
  });

  it('is done again when its results are gone', async () => {
    await didWork();
    expect(await didWork({ isThere: false })).toBe(true);
  });

  it('is done again after it was interrupted', async () => {
    await didWork();
    await expect(didWork({ key: 'b', fails: true })).rejects.toThrow('on purpose');
    expect(await didWork({ key: 'a' })).toBe(true);
  });
});

describe('the hash of files', () => {
  it('follows names and contents, and no results or tests', async () => {
    const { hashFiles } = await load('hash-files.mjs');
    const write = (path: string, text: string) => {
      mkdirSync(join(root, 'packages/x', path, '..'), { recursive: true });
      writeFileSync(join(root, 'packages/x', path), text);
    };
    const hash = () => hashFiles(['packages/x']);
    write('src/a.ts', '1');
    const before = hash();
    write('dist/a.js', '1');
    write('test/a.test.ts', '1');
    write('src/generated/wasm.ts', '1');
    expect(hash()).toBe(before);
    write('src/a.ts', '2');
    const changed = hash();
    expect(changed).not.toBe(before);
    write('src/b.ts', '');
    expect(hash()).not.toBe(changed);
  });
});

describe('a root command', () => {
  it('answers an old Node with a sentence, in syntax that an old Node reads', async () => {
    const entry = join(root, 'tooling/setup/run.cjs');
    const code = readFileSync(entry, 'utf8');
    await expect(transform(code, { target: 'es5' })).resolves.toBeDefined();
    expect(code).not.toMatch(/,\s*\)/); // a syntax error in Node 6, which esbuild would remove
    const fake = join(root, 'fake.cjs');
    writeFileSync(
      fake,
      `Object.defineProperty(process, 'versions', { value: { node: '12.22.0' } });`,
    );
    const { code: exit, stderr } = await runNode(['--require', fake, entry, 'train'], {});
    expect(exit).toBe(1);
    expect(stderr).toMatch(/^shardweave needs Node 20\.19 or newer, .*12\.22\.0.*\n$/);
  });

  it('a command without a network names the step and what it needs', async () => {
    const { code, stderr } = await runNode([join(root, 'tooling/setup/run.cjs'), 'train'], {
      npm_config_registry: 'http://127.0.0.1:9/', // the discard port, where nobody listens
      npm_config_cache: join(root, 'cache'),
      npm_config_fetch_retries: '0',
    });
    expect(code).toBe(1);
    expect(stderr).toMatch(/^set-up: install: needs the npm registry, .*\(ECONNREFUSED\)/m);
    expect(stderr).not.toMatch(/^\s+at /m);
  });

  it('a command that does not exist is a usage error', async () => {
    const { code, stderr } = await runNode([join(root, 'tooling/setup/run.cjs'), 'fly'], {});
    expect(code).toBe(2);
    expect(stderr).toMatch(
      /expected one of train, generate, eval, plan, inspect, convert, merge, gguf, onnx, embed, push, join, leave, verify, replay, bisect, report, dashboard, build, test, test:nodes, test:long, bench, kernels, one-hash, mutants, docs, doctor, got fly/,
    );
  });
});

function runNode(args: readonly string[], environment: Record<string, string>) {
  return new Promise<{ code: number; stderr: string }>((resolve) => {
    const env = { ...process.env, ...environment };
    execFile(process.execPath, args, { cwd: root, env }, (error, _stdout, stderr) => {
      resolve({ code: error ? Number(error.code) : 0, stderr });
    });
  });
}

describe('OpenBLAS for the tests', () => {
  afterEach(() => {
    vi.unstubAllEnvs();
    vi.restoreAllMocks();
  });

  it('is what the loader finds, or missing with a reason where apt is refused', async () => {
    const { blasForTests } = await load('open-blas.mjs');
    const said = vi.spyOn(process.stderr, 'write').mockReturnValue(true);
    vi.spyOn(process, 'platform', 'get').mockReturnValue('linux');
    vi.stubEnv('SHARDWEAVE_NO_APT', '1');
    const cache = join(root, 'ld.so.cache');
    expect(blasForTests(cache).environment.SHARDWEAVE_NO_BLAS).toMatch(/^no OpenBLAS was found/);
    expect(said).toHaveBeenCalledWith(expect.stringContaining('its tests will skip'));
    writeFileSync(cache, 'glibc-ld.so.cache\0libopenblas.so.0\0');
    expect(blasForTests(cache)).toEqual({ environment: {} });
  });
});

describe('MPI for the tests', () => {
  afterEach(() => {
    vi.unstubAllEnvs();
    vi.restoreAllMocks();
  });

  it('is what is found on the path', async () => {
    const { findMpirun, mpiForTests } = await load('open-mpi.mjs');
    writeFileSync(join(root, 'mpirun'), '');
    vi.stubEnv('PATH', root);
    expect(findMpirun()).toBe(join(root, 'mpirun'));
    expect(mpiForTests()).toEqual({ environment: {} });
  });

  it('is missing with a reason where apt is refused', async () => {
    const { mpiForTests } = await load('open-mpi.mjs');
    const said = vi.spyOn(process.stderr, 'write').mockReturnValue(true);
    vi.stubEnv('PATH', root);
    vi.stubEnv('SHARDWEAVE_NO_APT', '1');
    expect(mpiForTests().environment.SHARDWEAVE_NO_MPI).toMatch(/^no mpirun was found, and apt/);
    expect(said).toHaveBeenCalledWith(expect.stringContaining('its tests will skip'));
  });
});
