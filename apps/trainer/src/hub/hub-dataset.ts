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
  readonly flag: keyof typeof DEFAULTS;
  /** Whether the files are needed, or their names alone. Default true. */
  readonly needsFiles?: boolean | undefined;
}

const README = 'README.md';
/** The splits that are meant where a name has none. */
const DEFAULTS = {
  '--data': ['train'],
  '--mine-negatives': ['train'],
  '--valid': ['validation', 'test'],
} as const;

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
  const guess = (at: RepoCommit) => {
    const split = guessSplit(() => choose(at, namesOf(at)));
    if (split !== undefined) {
      options.onNote?.(
        `${flag}: another program has downloaded ${repo}@${at.commit}, and what it left in the cache is taken for all of the split.`,
      );
    }
    return split && pinned(at, split);
  };
  const use: RepoUse<string> = {
    kind: 'dataset',
    flag,
    lacks: `${repo}@${revision}`,
    find: (at, { isAlone }) => {
      const files = at.cached.listing(at.commit);
      if (files === undefined) {
        return isAlone ? guess(at) : undefined;
      }
      const isThere = (path: string) => at.cached.has(at.commit, path);
      if (files.has(README) && !isThere(README)) {
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

/** A split of the files that are here, which may lack some; undefined where it is known to. */
function guessSplit(choose: () => Split): Split | undefined {
  try {
    const split = choose();
    // data/train-00000-of-00002.parquet tells how many there are of its like.
    const likes = split.paths.map((path) => path.replace(/-\d{5}(-of-\d{5})/, '$1'));
    const countOf = (like: string) => Number(/-of-(\d{5})/.exec(like)?.[1] ?? 1);
    const hasAll = (like: string) =>
      likes.filter((other) => other === like).length >= countOf(like);
    return likes.every(hasAll) ? split : undefined;
  } catch (error) {
    if (error instanceof UsageError) {
      return undefined; // the Hub may have what is asked for
    }
    throw error;
  }
}

/** The names of all files of a commit or, where nobody has listed them, of those that are here. */
function namesOf({ cached, commit }: RepoCommit): readonly string[] {
  return [...(cached.listing(commit)?.keys() ?? cached.namesHere(commit))];
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
  const paths = namesOf(at);
  if (paths.length === 0) {
    throw new UsageError(
      `--data: ${pinned} is not in the cache ${cached.path} any more. Run the command again.`,
    );
  }
  const readme = readmeOf(at);
  const split = chooseSplit({ paths, readme }, { parts, defaults: [] }, { flag: '--data', repo });
  return split.paths.map((path) => join(cached.snapshot(commit), path));
}
