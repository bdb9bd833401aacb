// A data set of the Hub on this machine: its name with commit, config and split, which means the
// same files at any time, and these files in the cache.

import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { UsageError } from '../errors.js';
import { chooseSplit, type Split } from './choose-split.js';
import { type DataName, dataNameText, parseDataName } from './data-name.js';
import { CachedRepo } from './hub-cache.js';
import type { HubClient } from './hub-client.js';
import type { RepoCommit, RepoOptions, RepoUse } from './hub-repo.js';
import { hubSettings } from './hub-settings.js';

export interface DatasetOptions extends RepoOptions {
  /** The flag that names the data set. */
  readonly flag: '--data' | '--valid';
  /** Whether the files are needed, or their names alone. Default true. */
  readonly needsFiles?: boolean | undefined;
}

const README = 'README.md';
/** The splits that are meant where a name has none. */
const DEFAULTS = { '--data': ['train'], '--valid': ['validation', 'test'] } as const;

/**
 * Finds a data set, and downloads what the command needs of it; resolves to its name with commit,
 * config and split.
 * @throws what findRepo does
 */
export async function hubDataset(name: DataName, options: DatasetOptions): Promise<string> {
  const { flag, needsFiles = true } = options;
  const { repo, parts, revision = 'main' } = name;
  const pinned = (at: RepoCommit, { config, split }: Split) =>
    dataNameText({ repo, revision: at.commit, parts: [config, split] });
  const choose = (at: RepoCommit, paths: readonly string[]) =>
    chooseSplit(
      { paths, readme: readmeOf(at) },
      { parts, defaults: DEFAULTS[flag] },
      { flag, repo },
    );
  const use: RepoUse<string> = {
    kind: 'dataset',
    flag,
    lacks: `${repo}@${revision}`,
    find: (at) => {
      const { cached, commit } = at;
      const files = cached.listing(commit);
      const isThere = (path: string) => cached.has(commit, path);
      if (files === undefined || (files.has(README) && !isThere(README))) {
        return undefined;
      }
      const split = choose(at, [...files.keys()]);
      return !needsFiles || split.paths.every(isThere) ? pinned(at, split) : undefined;
    },
    isWhole: (at) => at.cached.listing(at.commit) !== undefined,
    download: async (at, client) => pinned(at, await download(at, choose, { ...options, client })),
  };
  // The library of the Hub is large, and most commands need none of it.
  const { findRepo } = await import('./hub-repo.js');
  return await findRepo(name, use, options);
}

async function download(
  at: RepoCommit,
  choose: (at: RepoCommit, paths: readonly string[]) => Split,
  tools: DatasetOptions & { readonly client: HubClient },
): Promise<Split> {
  const { client, needsFiles = true } = tools;
  const { downloadAll, listRepo } = await import('./hub-repo.js');
  const files = await listRepo(at, client);
  const take = async (names: readonly string[]) => {
    const wanted = new Set(names);
    await downloadAll(
      files.filter(({ path }) => wanted.has(path)),
      at,
      tools,
    );
  };
  await take([README]);
  const paths = files.map(({ path }) => path);
  const split = choose(at, paths);
  await take(needsFiles ? split.paths : []);
  return split;
}

function readmeOf({ cached, commit }: RepoCommit): string | undefined {
  const path = join(cached.snapshot(commit), README);
  return existsSync(path) ? readFileSync(path, 'utf8') : undefined;
}

/**
 * The files of a name that `hubDataset` has resolved to, in order.
 * @throws {UsageError} where the cache has lost them
 */
export function datasetFiles(
  pinned: string,
  env: NodeJS.ProcessEnv = process.env,
): readonly string[] {
  const name = parseDataName(pinned, '--data');
  const { repo, revision: commit = '', parts } = name;
  const cached = new CachedRepo(hubSettings(env).cache, repo, 'dataset');
  const at = { repo, commit, cached };
  const files = cached.listing(commit);
  if (files === undefined) {
    throw new UsageError(
      `--data: ${pinned} is not in the cache ${cached.path} any more. Run the command again.`,
    );
  }
  const [paths, readme] = [[...files.keys()], readmeOf(at)];
  const split = chooseSplit({ paths, readme }, { parts, defaults: [] }, { flag: '--data', repo });
  return split.paths.map((path) => join(cached.snapshot(commit), path));
}
