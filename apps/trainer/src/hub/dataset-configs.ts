// The configs of a data set's repository, and the files of their splits. What its README.md says in
// the block of YAML at its head counts; else the names of files and folders do, as for Hugging
// Face's `datasets`.

import { parse } from 'yaml';
import { globPattern } from '../files/glob-pattern.js';

/** The files of each split. */
export type Splits = ReadonlyMap<string, readonly string[]>;

/** A part of a data set that has splits of its own, such as a language. */
export interface DatasetConfig {
  readonly name: string;
  readonly isDefault: boolean;
  /** Computed when it is asked for. */
  readonly splits: () => Splits;
}

/** What can be read; a repository has its data in one of these. */
const KINDS = [/\.parquet$/i, /\.(jsonl|ndjson|json)$/i, /\.(csv|tsv)$/i, /\.txt$/i];
/** Files that describe data, and hidden ones. */
const NO_DATA =
  /(^|\/)(config|dataset_infos?|dataset_dict|state)\.json$|(^|\/)(license|requirements|readme)[^/]*\.txt$|(^|\/)(\.|__)/i;
/** Splits by the words of names. */
const WORDS: Readonly<Record<string, RegExp>> = {
  train: /^(train|training)$/i,
  validation: /^(validation|valid|dev|val)$/i,
  test: /^(test|testing|eval|evaluation)$/i,
};
/** A split of any name, as `push_to_hub` lays out its files: data/NAME-00000-of-00002.parquet. */
const PUSHED = /^data\/(.+)-\d{5}-of-\d{5,}[^/]*$/;
/** As the Hub itself lays out what it has converted: CONFIG/SPLIT/0000.parquet. */
const CONVERTED = /^([^/]+)\/(?:partial-)?([^/]+)\/\d{4}\.parquet$/;
/** Whether a file can be read as data, by its name. */
export function isData(path: string): boolean {
  return KINDS.some((kind) => kind.test(path));
}

/**
 * The configs of a repository; one named default where nothing says more.
 * @param paths all its files
 * @param readme the text of its README.md
 */
export function configsOf(
  paths: readonly string[],
  readme: string | undefined,
): readonly DatasetConfig[] {
  const told = toldConfigs(readme);
  if (told.length > 0) {
    return told.map((config) => {
      const { config_name: name = 'default', default: isDefault } = config;
      return {
        name: String(name),
        isDefault: isDefault === true,
        splits: () => splitsOf(config, paths),
      };
    });
  }
  const data = mostOfAKind(paths);
  const converted = data.flatMap((path) => CONVERTED.exec(path)?.[1] ?? []);
  if (data.length > 0 && converted.length === data.length) {
    return [...new Set(converted)].map((name) => ({
      name,
      isDefault: false,
      splits: () =>
        grouped(
          data.filter((path) => path.startsWith(`${name}/`)),
          (path) => CONVERTED.exec(path)?.[2],
        ),
    }));
  }
  return [{ name: 'default', isDefault: true, splits: () => splitsByName(data) }];
}

/** A config as READMEs have it. */
interface ToldConfig {
  readonly config_name?: unknown;
  readonly default?: unknown;
  readonly data_dir?: unknown;
  readonly data_files?: unknown;
}

function toldConfigs(readme = ''): readonly ToldConfig[] {
  const [, head] = /^\ufeff?---\r?\n([\s\S]*?)\r?\n---/.exec(readme) ?? [];
  try {
    const { configs } = parse(head ?? '') as { readonly configs?: unknown };
    return Array.isArray(configs) ? configs.filter((config) => config instanceof Object) : [];
  } catch {
    return []; // the Hub refuses such a README, or nothing is in the block
  }
}

function splitsOf({ data_files: told, data_dir: dir }: ToldConfig, all: readonly string[]): Splits {
  const folder = typeof dir === 'string' ? dir.replace(/^\.?(\/+|$)|\/+$/g, '') : '';
  const base = folder === '' ? '' : `${folder}/`;
  const below = all.filter((path) => path.startsWith(base));
  if (told === undefined || told === null) {
    return splitsByName(mostOfAKind(below), base.length);
  }
  const found = new Map<string, readonly string[]>();
  for (const [split, globs] of entriesOf(told)) {
    const patterns = globs.map((glob) => globPattern(inRepo(base + glob)));
    const own = below.filter((path) => patterns.some((pattern) => pattern.test(path)));
    found.set(split, [...new Set([...(found.get(split) ?? []), ...own])]);
  }
  return found;
}

/** The patterns of each split: a text, a list of texts, or of {split, path}, or one by split. */
function entriesOf(told: unknown): readonly (readonly [string, readonly string[]])[] {
  const globs = (value: unknown) => (Array.isArray(value) ? value : [value]).map(String);
  if (typeof told === 'string') {
    return [['train', [told]]];
  }
  if (!Array.isArray(told)) {
    return Object.entries(told as object).map(([split, value]) => [split, globs(value)]);
  }
  return (told as unknown[]).map((entry) => {
    const { split = 'train', path = entry } = entry instanceof Object ? (entry as ToldFiles) : {};
    return [String(split), globs(path)];
  });
}

interface ToldFiles {
  readonly split?: unknown;
  readonly path?: unknown;
}

/** A pattern without what leads to the repository. */
function inRepo(glob: string): string {
  return glob.replace(/^hf:\/\/datasets\/[^/]+\/[^/]+\/|^\.\//, '');
}

/** The data files of the kind that there are most of. */
function mostOfAKind(paths: readonly string[]): readonly string[] {
  const data = paths.filter((path) => !NO_DATA.test(path));
  const byKind = KINDS.map((kind) => data.filter((path) => kind.test(path)));
  return byKind.reduce((most, own) => (own.length > most.length ? own : most));
}

/**
 * The splits by the words in names of files, or else of their folders; where no name has such a
 * word, all are to train on.
 * @param base the length of the part of each path that says nothing
 */
function splitsByName(data: readonly string[], base = 0): Splits {
  const pushed = grouped(data, (path) => PUSHED.exec(path.slice(base))?.[1]);
  if (pushed.size > 0) {
    return pushed;
  }
  const named = grouped(data, (path) =>
    path
      .slice(base)
      .split('/')
      .toReversed()
      .map(splitOfWord)
      .find((split) => split !== undefined),
  );
  return named.size > 0 ? named : grouped(data, () => 'train');
}

function splitOfWord(name: string): string | undefined {
  const words = name.split(/[^a-zA-Z0-9]+|(?<=[a-zA-Z])(?=\d)/);
  return Object.keys(WORDS).find((split) => words.some((word) => WORDS[split]!.test(word)));
}

function grouped(paths: readonly string[], splitOf: (path: string) => string | undefined): Splits {
  const found = new Map<string, string[]>();
  for (const path of paths) {
    const split = splitOf(path);
    if (split !== undefined) {
      const own = found.get(split) ?? [];
      own.push(path);
      found.set(split, own);
    }
  }
  return found;
}
