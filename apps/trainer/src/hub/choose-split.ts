// Which files of a data set's repository are read: those of one split of one config.

import { UsageError } from '../errors.js';
import { configsOf, isData } from './dataset-configs.js';

/** A split: the files that are read for it, in order. */
export interface Split {
  readonly config: string;
  readonly split: string;
  readonly paths: readonly string[];
}

/** Which split is asked for. */
export interface SplitChoice {
  /** See DataName. */
  readonly parts: readonly string[];
  /** The splits that are meant where none is named, the first one that there is. */
  readonly defaults: readonly string[];
}

/** The repository for messages: the flag that names it, its name, and its revision. */
export interface SplitOwner {
  readonly flag: string;
  readonly repo: string;
}

/** The most names that a message lists. */
const MOST_NAMES = 12;

/**
 * Chooses a split.
 * @param paths all files of the repository
 * @param readme the text of its README.md
 * @throws {UsageError} where there is no such split, or none that can be read
 */
export function chooseSplit(
  { paths, readme }: { readonly paths: readonly string[]; readonly readme: string | undefined },
  { parts, defaults }: SplitChoice,
  owner: SplitOwner,
): Split {
  const { flag, repo } = owner;
  const configs = configsOf(paths, readme);
  const names = configs.map(({ name }) => name);
  // One word is a config where there is one of that name, and a split otherwise.
  const isSplit = parts.length === 1 && !names.includes(parts[0]!);
  const [askedConfig = '', askedSplit = ''] = isSplit ? ['', ...parts] : parts;
  const isNamed = askedConfig !== '';
  const config = isNamed
    ? configs.find(({ name }) => name === askedConfig)
    : (configs.find(({ isDefault }) => isDefault) ??
      configs.find(({ name }) => name === 'default') ??
      (configs.length === 1 ? configs[0] : undefined));
  if (config === undefined) {
    const got = isNamed || isSplit ? `got "${parts.join(':')}"` : 'got none';
    throw new UsageError(
      `${flag}: ${repo} expects a config behind its name, one of ${listed(names)}, ${got}. Name it as hf:${repo}:${names[0]}.`,
    );
  }
  const splits = config.splits();
  const wanted = askedSplit === '' ? defaults : [askedSplit];
  const split = wanted.find((name) => splits.has(name));
  if (split !== undefined) {
    return { config: config.name, split, paths: readable(splits.get(split)!, paths, owner) };
  }
  if (splits.size === 0) {
    readable([], paths, owner);
  }
  const own = [...splits.keys()];
  const others =
    isSplit && names.length > 1 ? `, and no config of that name: ${listed(names)}` : '';
  throw new UsageError(
    `${flag}: ${repo} (config ${config.name}) has no split ${wanted.map((name) => `"${name}"`).join(' or ')}, but ${listed(own)}${others}. Name one as hf:${repo}:${config.name}:${own[0]}.`,
  );
}

function listed(names: readonly string[]): string {
  const more = names.length - MOST_NAMES;
  return `${names.slice(0, MOST_NAMES).join(', ')}${more > 0 ? ` and ${more} more` : ''}`;
}

/** The files of a split, in order of their names, all of which can be read. */
function readable(
  own: readonly string[],
  all: readonly string[],
  { flag, repo }: SplitOwner,
): readonly string[] {
  const other = own.find((path) => !isData(path));
  if (own.length > 0 && other === undefined) {
    return own.toSorted();
  }
  const counts = new Map<string, number>();
  for (const path of other === undefined ? all : own) {
    const ending = /\.[^./]+$/.exec(path)?.[0] ?? path;
    counts.set(ending, (counts.get(ending) ?? 0) + 1);
  }
  const held = [...counts].map(([ending, count]) => `${count} ${ending}`);
  throw new UsageError(
    `${flag}: expected JSON lines, Parquet, CSV, TSV or text in ${repo}, got ${held.length === 0 ? 'no files' : `files of other kinds: ${listed(held)}`}. The Hub makes Parquet of many data sets: try hf:${repo}@refs/convert/parquet.`,
  );
}
