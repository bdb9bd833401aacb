// What must hold for the files under version control: they are formatted, linted and typed, and
// name no registry and no machine.
import { execFile, execFileSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { ROOT, trackedFiles } from './workspace.ts';

const BINARY = /\.(png|jpg|gif|ico|bin|safetensors|wasm|woff2?)$/;
const LONGEST_CHECK_MS = 240_000; // over everything it takes 8 s on an idle machine

/** The names are put together here, so that this file itself contains none of them. */
const REGISTRIES = [
  ['registry', 'npmjs', 'org'],
  ['registry', 'yarnpkg', 'com'],
  ['npm', 'jsr', 'io'],
  ['deb', 'debian', 'org'],
  ['security', 'debian', 'org'],
  ['snapshot', 'debian', 'org'],
  ['archive', 'ubuntu', 'com'],
  ['pypi', 'org'],
].map((parts) => parts.join('.'));

const MACHINE_PATH = /(?<![\w.:@~/-])\/(?:home|Users|root|work)\/[\w.]/;

describe('the tree', () => {
  it('holds no address of a package registry, the lock file included', () => {
    const addresses = [...REGISTRIES, ...configuredHosts()];
    const strays = linesWhere((line) => addresses.some((address) => line.includes(address)));
    expect(strays).toEqual([]);
  });

  it('holds no path of a machine', () => {
    expect(linesWhere((line) => MACHINE_PATH.test(line))).toEqual([]);
  });

  it('is formatted and linted', async () => {
    const biome = join(ROOT, 'node_modules/@biomejs/biome/bin/biome');
    const { code, output } = await runNode([biome, 'check', '--colors=off']);
    expect(code, output).toBe(0);
  });

  it('names the class in every @throws', () => {
    // Where a function passes on what a function of the caller threw, there is no class to name.
    expect(linesWhere((line) => /[*/] @throws (?!\{\w+\}|what )/.test(line))).toEqual([]);
  });

  it('has no type errors in any package, app or tool', { timeout: LONGEST_CHECK_MS }, async () => {
    // TypeScript 7 takes a quarter of the time of 5.9. The older one stays because tsup reads
    // declarations through its interface.
    const tsc = join(ROOT, 'node_modules/typescript-7/bin/tsc');
    // Each of its threads checks what the others share once more: two take a third more of the
    // processors' time, of which the other test files leave none.
    // The compiler ends soon: to collect its garbage takes a quarter of its time and spares 12 % of
    // its memory.
    const args = [tsc, '--noEmit', '--checkers', '1', '--project', ROOT];
    const { code, output } = await runNode(args, { GOGC: 'off' });
    expect(code, output).toBe(0);
  });
});

/** The lines of tracked text files for which a predicate is true, as `path:line`. */
function linesWhere(predicate: (line: string) => boolean): readonly string[] {
  return trackedFiles()
    .filter((path) => !BINARY.test(path))
    .flatMap((path) =>
      readFileSync(join(ROOT, path), 'utf8')
        .split('\n')
        .flatMap((line, index) => (predicate(line) ? [`${path}:${index + 1}`] : [])),
    );
}

/**
 * The hosts that this machine is set up with, since the name of a mirror must not slip in either.
 */
function configuredHosts(): readonly string[] {
  const isWindows = process.platform === 'win32';
  const npm = execFileSync('npm', ['config', 'get', 'registry'], {
    encoding: 'utf8',
    shell: isWindows,
    stdio: ['ignore', 'pipe', 'ignore'],
  });
  const sources = '/etc/apt/sources.list.d';
  const apt = existsSync(sources)
    ? readdirSync(sources).map((name) => readFileSync(join(sources, name), 'utf8'))
    : [];
  return [npm, ...apt].flatMap((text) =>
    // Only names that end in letters count. Addresses in digits, such as loopback's, are the same
    // everywhere.
    [...text.matchAll(/https?:\/\/(?:[^/@\s]*@)?([\w.-]+\.[a-z]+)\b/g)].map((match) => match[1]!),
  );
}

function runNode(
  args: readonly string[],
  env: NodeJS.ProcessEnv = {},
): Promise<{ code: number; output: string }> {
  return new Promise((resolve) => {
    execFile(
      process.execPath,
      args,
      { cwd: ROOT, maxBuffer: 64 << 20, env: { ...process.env, ...env } },
      (error, stdout, stderr) => {
        const code = error ? Number(error.code ?? 1) : 0;
        resolve({ code, output: `${stdout}${stderr}`.slice(0, 20_000) });
      },
    );
  });
}
